"""The three routes by which a bucket is reduced over all ranks, as pure functions.

dense       the engine's own all-reduce of the float tensors
all_gather  every rank encodes its gradients; all decode and sum all payloads in rank order
two_phase   chunk r of every payload goes to rank r, which decodes, sums and encodes it again, with
            a residual of its own; the new payloads are gathered

A contribution is scaled by 1/size where contributions are summed. So the second residual is in
units of the reduced gradient, and no sum over ranks can overflow a narrow second payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradcomp import kernels
from gradcomp.bucket import Bucket
from gradcomp.codecs.base import Codec
from gradcomp.collective import Collective
from gradcomp.feedback import BucketState

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True)
class Reduced:
    """A bucket after the exchange.

    Attributes:
      gradients: in the bucket's order, with the gradients' shapes and dtypes; equal on all ranks.
      state: to be committed only if all that was reduced in the step is finite.
      finite: bool scalar, whether every value of `gradients` is finite; equal on all ranks.
    """

    gradients: list[tf.Tensor]
    state: BucketState
    finite: tf.Tensor


@dataclass(frozen=True)
class Randomness:
    """Seeds the random bits of a step: equal `seed` and `step` give equal bytes."""

    seed: int
    step: Any  # int or int64 scalar tensor

    def key(self, rank: int, phase: int) -> tuple[Any, ...]:
        return (self.seed, self.step, rank, phase)


@dataclass(frozen=True)
class Exchange:
    """How one bucket's gradients are reduced over all ranks, by the bucket's route.

    Attributes:
      average: mean over ranks if True, else sum.
      name: prefix of the collectives' names; equal on all ranks, unique within a step.
      scale: what the sum over ranks is multiplied by; None for what `average` says.
      predivide: what uncompressed values are divided by before they are summed, and multiplied by
        afterwards. Encoded ones are scaled one by one before they are summed, and need it not.
    """

    bucket: Bucket
    collective: Collective
    randomness: Randomness
    average: bool
    name: str
    scale: float | None = None
    predivide: float = 1.0

    def __call__(self, gradients: Sequence[tf.Tensor], state: BucketState) -> Reduced:
        """Reduces one tensor a variable, in the bucket's order."""
        if self.bucket.route == "dense":
            return self._dense(list(gradients), state)
        route = self._all_gather if self.bucket.route == "all_gather" else self._two_phase
        # The decoders too: what they are given may come from the host.
        with kernels.beside(gradients):
            return route(list(gradients), state)

    @property
    def _scale(self) -> float:
        if self.scale is not None:
            return self.scale
        return 1.0 / self.collective.size if self.average else 1.0

    def _encode(
        self, gradients: list[tf.Tensor], state: BucketState
    ) -> tuple[Codec, tf.Tensor, list[tf.Tensor] | None]:
        codec = self.bucket.codec
        assert codec is not None
        key = self.randomness.key(self.collective.rank, phase=0)
        payload, residuals = codec.encode_bucket(
            gradients, state.residuals, self.bucket.segments, key
        )
        return codec, payload, residuals

    def _dense(self, gradients: list[tf.Tensor], state: BucketState) -> Reduced:
        import tensorflow as tf

        wide, engines = widened(gradients), self.scale is None and self.predivide == 1.0
        if self.predivide != 1.0:
            wide = [w / self.predivide for w in wide]
        sums = self.collective.all_reduce(
            wide, average=self.average and engines, name=f"{self.name}.all_reduce"
        )
        if not engines:
            sums = [s * (self._scale * self.predivide) for s in sums]
        reduced = [tf.cast(s, g.dtype) for s, g in zip(sums, gradients, strict=True)]
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(r)) for r in reduced])
        return Reduced(reduced, state, finite)

    def _all_gather(self, gradients: list[tf.Tensor], state: BucketState) -> Reduced:
        codec, payload, residuals = self._encode(gradients, state)
        size = self.collective.size
        payloads = self.collective.all_gather(
            payload, sizes=[self.bucket.payload_bytes] * size, name=f"{self.name}.all_gather"
        )
        reduced, finite = codec.decode_bucket(
            payloads, size, self.bucket.segments, self._scale, *_like(gradients)
        )
        return Reduced(reduced, BucketState(residuals), finite)

    def _two_phase(self, gradients: list[tf.Tensor], state: BucketState) -> Reduced:
        codec, payload, residuals = self._encode(gradients, state)
        rank, chunks = self.collective.rank, self.bucket.chunks
        sizes = [chunk.payload_bytes for chunk in chunks]
        received = self.collective.all_to_all(payload, splits=sizes, name=f"{self.name}.all_to_all")
        chunk_payload, chunk_residual = codec.reduce_bucket(
            received,
            self.collective.size,
            state.chunk_residual,
            chunks[rank].segments,
            self.randomness.key(rank, phase=1),
            self._scale,
        )
        # Chunks follow each other in the payload as ranks do: gathered, they are the whole bucket.
        whole = self.collective.all_gather(
            chunk_payload, sizes=sizes, name=f"{self.name}.all_gather"
        )
        reduced, finite = codec.decode_bucket(
            whole, 1, self.bucket.segments, 1.0, *_like(gradients)
        )
        return Reduced(reduced, BucketState(residuals, chunk_residual), finite)


def widened(gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """In float32 at least: summing half-precision values loses what the values still had."""
    import tensorflow as tf

    return [g if g.dtype.size >= 4 else tf.cast(g, tf.float32) for g in gradients]


def _like(gradients: list[tf.Tensor]) -> tuple[list[tuple[int, ...]], list[str]]:
    return [tuple(g.shape) for g in gradients], [g.dtype.name for g in gradients]
