"""A reducer: one set of variables' gradients, its residuals, and their exchange at each step.

Engines own reducers. A reducer owns the state (`tf.Variable`s); everything below it is pure.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from gradcomp import feedback
from gradcomp.bucket import Bucket, sent_bytes
from gradcomp.collective import Collective, Meter
from gradcomp.exchange import Randomness, exchange, exchange_sparse
from gradcomp.feedback import BucketState
from gradcomp.handshake import describe_plan, shake_hands
from gradcomp.plan import Plan

Gradient = Any  # tf.Tensor | tf.IndexedSlices | None

_NONE, _DENSE, _SPARSE = "none", "dense", "sparse"


@dataclass(frozen=True)
class Traffic:
    """What a reducer has moved so far, on this rank.

    Attributes:
      steps: exchanges so far.
      raw_bytes: bytes that the same gradients would have sent uncompressed.
      sent_bytes: bytes sent, counted at the collectives.
      compressed_numel, total_numel: parameters whose gradients are compressed, and all.
    """

    steps: int
    raw_bytes: int
    sent_bytes: int
    compressed_numel: int
    total_numel: int

    @property
    def compression_ratio(self) -> float:
        """Raw bytes ÷ sent bytes; 1.0 where nothing was sent."""
        return self.raw_bytes / self.sent_bytes if self.sent_bytes else 1.0


class Reducer:
    """Reduces the gradients of `plan.variables` over the ranks of `collective`.

    Create it on every rank at the same point of the program: it shakes hands at once.

    Args:
      average: mean over ranks if True, else sum.
      error_feedback: keep what lossy codecs drop, and send it later.
      seed: of the random bits of stochastic rounding.
      name: prefix of the collectives' names; equal on all ranks, unique in the program.

    Raises:
      MismatchError: ranks disagree about the plan or an option.
    """

    def __init__(
        self,
        plan: Plan,
        collective: Collective,
        *,
        average: bool = True,
        error_feedback: bool = True,
        seed: int = 0,
        name: str,
    ) -> None:
        self.plan = plan
        self._collective = collective
        self._average = average
        self._seed = seed
        self._name = name
        self._agreed: dict[tuple[str, ...], tuple[str, ...]] = {}
        with tf.init_scope():
            if collective.size > 1:
                options = {"average": average, "error_feedback": error_feedback, "seed": seed}
                shake_hands(collective, describe_plan(plan, **options), name)
            self.step = tf.Variable(0, trainable=False, dtype=tf.int64, name="step")
            self._counters = {
                what: tf.Variable(0, trainable=False, dtype=tf.int64, name=what)
                for what in ("steps", "raw_bytes", "sent_bytes")
            }
            # By the variable's index, and for the second phase by the bucket's.
            self.residuals: dict[int, tf.Variable] = {}
            self.chunk_residuals: dict[int, tf.Variable] = {}
            if error_feedback and collective.size > 1:
                self._create_residuals()

    def _create_residuals(self) -> None:
        for bucket in filter(feedback.has_feedback, self.plan.buckets):
            for v in bucket.variables:
                self.residuals[v.index] = _zeros(v.shape, f"residual_{v.index}")
            if bucket.route == "two_phase":
                self.chunk_residuals[bucket.index] = _zeros(
                    (bucket.chunks[self._collective.rank].numel,), f"chunk_residual_{bucket.index}"
                )

    def traffic(self) -> Traffic:
        """Bytes and steps so far; read it outside a `tf.function`."""
        counts = {what: int(counter.numpy()) for what, counter in self._counters.items()}
        return Traffic(
            **counts,
            compressed_numel=self.plan.compressed_numel,
            total_numel=self.plan.total_numel,
        )

    def agree(self, gradients: Sequence[Gradient]) -> list[Gradient]:
        """Fills in for ranks on which a variable has no gradient, or one of another kind.

        A gradient that is None here and not on another rank becomes zeros; one that is sparse here
        and dense elsewhere becomes dense. Only what is None on all ranks stays None. Ranks ask each
        other the first time that they see a combination, never again for the same one.
        """
        if self._collective.size == 1:
            return list(gradients)
        kinds = tuple(map(_kind, gradients))
        if kinds not in self._agreed:
            with tf.init_scope():
                everyones = self._collective.all_gather_object(
                    kinds, name=f"{self._name}.kinds.{len(self._agreed)}"
                )
            self._agreed[kinds] = tuple(map(_common_kind, zip(*everyones, strict=True)))
        return [
            _as_kind(gradient, kind, variable.shape, variable.dtype)
            for gradient, kind, variable in zip(
                gradients, self._agreed[kinds], self.plan.variables, strict=True
            )
        ]

    def reduce(self, gradients: Sequence[Gradient]) -> list[Gradient]:
        """Exchanges one step's gradients; returns them reduced, equal on all ranks.

        Residuals and the step counter change only if every reduced value is finite.

        Args:
          gradients: one a variable of the plan, in its order, as `agree` returned them.
        """
        if self._collective.size == 1:
            _warn_alone(self.plan)
            self._count(raw=0, sent=0)
            return list(gradients)
        meter = Meter(self._collective)
        randomness = Randomness(self._seed, self.step.read_value())
        reduced: list[Gradient] = [None] * len(gradients)
        verdicts: list[tf.Tensor] = []
        updates: list[tuple[tf.Variable, tf.Tensor]] = []
        for bucket in self.plan.buckets:
            self._reduce_bucket(bucket, gradients, meter, randomness, reduced, verdicts, updates)
        for index, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices):
                reduced[index], finite = exchange_sparse(
                    gradient, meter, average=self._average, name=f"{self._name}.sparse{index}"
                )
                verdicts.append(finite)
        if verdicts:
            feedback.commit(tf.reduce_all(verdicts), updates, self.step)
        raw = sum(
            v.raw_bytes
            for v, gradient in zip(self.plan.variables, gradients, strict=True)
            if gradient is not None
        )
        self._count(sent_bytes("dense", meter.size, raw, raw), meter.sent)
        return reduced

    def _reduce_bucket(
        self,
        bucket: Bucket,
        gradients: Sequence[Gradient],
        meter: Meter,
        randomness: Randomness,
        reduced: list[Gradient],
        verdicts: list[tf.Tensor],
        updates: list[tuple[tf.Variable, tf.Tensor]],
    ) -> None:
        own = [gradients[v.index] for v in bucket.variables]
        absent = frozenset(i for i, gradient in enumerate(own) if _kind(gradient) != _DENSE)
        if len(absent) == len(own):
            return
        # The bucket's layout is fixed, so that residuals of a chunk keep their place: a variable
        # without a gradient is sent as zeros, and what it waits to send goes on waiting.
        filled = [
            tf.zeros(v.shape, v.dtype) if position in absent else _with_shape(gradient, v.shape)
            for position, (v, gradient) in enumerate(zip(bucket.variables, own, strict=True))
        ]
        state = self._state(bucket)
        result = exchange(
            bucket,
            filled,
            feedback.withhold(bucket, meter.rank, state, absent),
            meter,
            randomness,
            average=self._average,
            name=f"{self._name}.bucket{bucket.index}",
        )
        verdicts.append(result.finite)
        new = feedback.resume(bucket, meter.rank, state, result.state, absent)
        for position, v in enumerate(bucket.variables):
            if position not in absent:
                reduced[v.index] = result.gradients[position]
                if new.residuals is not None:
                    updates.append((self.residuals[v.index], new.residuals[position]))
        if new.chunk_residual is not None:
            updates.append((self.chunk_residuals[bucket.index], new.chunk_residual))

    def _state(self, bucket: Bucket) -> BucketState:
        if bucket.variables[0].index not in self.residuals:
            return BucketState()
        chunk = self.chunk_residuals.get(bucket.index)
        return BucketState(
            [self.residuals[v.index].read_value() for v in bucket.variables],
            None if chunk is None else chunk.read_value(),
        )

    def _count(self, raw: Any, sent: Any) -> None:
        for what, value in (("steps", 1), ("raw_bytes", raw), ("sent_bytes", sent)):
            self._counters[what].assign_add(tf.cast(value, tf.int64))


def _zeros(shape: tuple[int, ...], name: str) -> tf.Variable:
    return tf.Variable(tf.zeros(shape), trainable=False, dtype=tf.float32, name=name)


def _with_shape(gradient: tf.Tensor, shape: tuple[int, ...]) -> tf.Tensor:
    return gradient if gradient.shape == shape else tf.ensure_shape(gradient, shape)


def _kind(gradient: Gradient) -> str:
    if gradient is None:
        return _NONE
    return _SPARSE if isinstance(gradient, tf.IndexedSlices) else _DENSE


def _common_kind(kinds: Sequence[str]) -> str:
    present = set(kinds) - {_NONE}
    if not present:
        return _NONE
    return present.pop() if len(present) == 1 else _DENSE


def _as_kind(gradient: Gradient, kind: str, shape: tuple[int, ...], dtype: str) -> Gradient:
    if kind == _kind(gradient):
        return gradient
    if kind == _DENSE:
        return tf.zeros(shape, dtype) if gradient is None else tf.convert_to_tensor(gradient)
    return tf.IndexedSlices(
        tf.zeros((0, *shape[1:]), dtype), tf.zeros((0,), tf.int64), tf.constant(shape, tf.int64)
    )


_said_alone = False


def _warn_alone(plan: Plan) -> None:
    global _said_alone
    if not _said_alone and any(v.codec is not None for v in plan.variables):
        _said_alone = True
        warnings.warn(
            "there is one process only, so there is nothing to compress: gradients are used as "
            "they are; start several, e.g. with `horovodrun -np 2 python train.py`",
            stacklevel=3,
        )
