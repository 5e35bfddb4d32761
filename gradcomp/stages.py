"""The exchange of a bucket in one of several stages, chosen anew at each step.

Each bucket chooses for itself, so that it need not wait for the gradients of others.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gradcomp.bucket import Bucket
from gradcomp.exchange import Reduced
from gradcomp.feedback import BucketState, is_finite
from gradcomp.hierarchy import Meters
from gradcomp.momentum import selects, zero_where_sent
from gradcomp.plan import Plan
from gradcomp.slots import slot

if TYPE_CHECKING:
    import tensorflow as tf


class Epoch:
    """Where a rank's warm-up is, and where that of all ranks is.

    Args:
      plan: has the warm-up.
      told: the epoch that the program is in; None where it has not said.

    Attributes:
      variable: int64 scalar, this rank's epoch.
    """

    def __init__(self, plan: Plan, told: int | None) -> None:
        import tensorflow as tf

        self._length = plan.warmup_epochs
        self._told = told is not None
        self.variable = slot(told or 0, "epoch", tf.int64)

    def set(self, epoch: int) -> None:
        """Goes to an epoch, from the next step on."""
        import tensorflow as tf

        self._told = True
        with tf.init_scope():
            self.variable.assign(epoch)

    def reach(self, epoch: int) -> None:
        """As `set`, unless it is further already."""
        self.set(max(epoch, self.read()))

    def read(self) -> int:
        """This rank's epoch, also while a step is traced."""
        import tensorflow as tf

        with tf.init_scope():
            return int(self.variable.numpy())

    def flags(self) -> tf.Tensor:
        """float32 [epochs of the warm-up]: 1 for each that is over on this rank."""
        import tensorflow as tf

        if self._length and not self._told:
            self._told = True
            warnings.warn(
                "gc.Warmup is not told which epoch it is and stays where it is: call "
                "gc.begin_epoch(epoch) at the start of each epoch of a training loop of your own",
                stacklevel=2,
            )
        over = self.variable.read_value() > tf.range(self._length, dtype=tf.int64)
        return tf.cast(over, tf.float32)

    @staticmethod
    def stage(counts: tf.Tensor, size: int) -> tf.Tensor:
        """int32 scalar: the stage that all of `size` ranks have reached, of the sum of `flags`."""
        import tensorflow as tf

        return tf.reduce_sum(tf.cast(counts >= size, tf.int32))


Exchanging = Callable[[Sequence[Any], BucketState], Reduced]
# Of a bucket in a stage, what carries its bytes, and a suffix for the collectives' names.
MakeExchange = Callable[[Bucket, Meters, str], Exchanging]


class Place(NamedTuple):
    """Where a rank stands among those that encode.

    Attributes:
      keeper: whose chunk of the second phase it keeps.
      contributions: by how many a reduced gradient was divided: all ranks under a mean, else 1.
    """

    keeper: int
    contributions: int


def reduce_in_stage(
    make: MakeExchange,
    stages: Sequence[Bucket],
    stage: tf.Tensor,
    meters: Meters,
    place: Place,
    gradients: Sequence[tf.Tensor],
    state: BucketState,
) -> Reduced:
    """Reduces a bucket by the exchange of a stage.

    Args:
      make: the exchange of a bucket.
      stages: the bucket in each stage; the last has the layout of the residuals.
      stage: int32 scalar, equal on all ranks.
      gradients: one a variable, in the bucket's order.
      state: its velocities have this step's gradients in them already.
    """
    import tensorflow as tf

    final = stages[-1]
    distinct = list({id(bucket): bucket for bucket in stages}.values())
    if len(distinct) == 1:
        return _reduce(make(final, meters, ""), final, final, place, gradients, state)

    def branch(number: int) -> tuple[Any, ...]:
        bucket, own = distinct[number], meters.fork()
        exchange = make(bucket, own, f".stage{number}")
        reduced = _reduce(exchange, bucket, final, place, gradients, state)
        return (
            reduced.gradients,
            [] if reduced.state.residuals is None else reduced.state.residuals,
            [] if reduced.state.chunk_residual is None else [reduced.state.chunk_residual],
            [] if reduced.state.velocities is None else reduced.state.velocities,
            reduced.finite,
            own.counts(),
        )

    numbers = [next(n for n, b in enumerate(distinct) if b is bucket) for bucket in stages]
    reduced, residuals, chunk, velocities, finite, sent = tf.switch_case(
        tf.gather(numbers, stage), [functools.partial(branch, n) for n in range(len(distinct))]
    )
    meters.add(sent)
    after = BucketState(
        residuals if state.residuals is not None else None,
        chunk[0] if state.chunk_residual is not None else None,
        velocities if state.velocities is not None else None,
    )
    return Reduced(reduced, after, finite)


def _reduce(
    exchange: Exchanging,
    bucket: Bucket,
    final: Bucket,
    place: Place,
    gradients: Sequence[tf.Tensor],
    state: BucketState,
) -> Reduced:
    if bucket.route == "dense" and final.route != "dense":
        return _send_whole(exchange, final, place, gradients, state)
    return exchange_in(exchange, bucket, gradients, state)


def exchange_in(
    exchange: Exchanging, bucket: Bucket, gradients: Sequence[tf.Tensor], state: BucketState
) -> Reduced:
    """Reduces a bucket by its own exchange, whose state has the residuals that it needs."""
    reduced = exchange(gradients, state)
    residuals, velocities = reduced.state.residuals, state.velocities
    if velocities is not None and residuals is not None and selects(bucket.codec):
        assert state.residuals is not None
        velocities = [
            zero_where_sent(u, g + old, new)
            for u, g, old, new in zip(
                velocities, gradients, state.residuals, residuals, strict=True
            )
        ]
    after = BucketState(residuals, reduced.state.chunk_residual, velocities)
    return Reduced(reduced.gradients, after, reduced.finite)


def _send_whole(
    exchange: Exchanging,
    final: Bucket,
    place: Place,
    gradients: Sequence[tf.Tensor],
    state: BucketState,
) -> Reduced:
    """Sends gradients and all that the residuals hold, uncompressed."""
    import tensorflow as tf

    residuals, chunk = state.residuals, state.chunk_residual
    # On ranks without residuals too, since all of a host have to send the same dtype.
    whole = [tf.cast(g, tf.float32) for g in gradients]
    if residuals is not None:
        whole = [w + r for w, r in zip(whole, residuals, strict=True)]
    if chunk is not None:
        # In units of the reduced gradient, of which a rank's contribution is a share.
        part = chunk * float(place.contributions)
        whole = add_chunk(whole, final.chunks[place.keeper].segments, part)
    reduced = exchange(whole, BucketState())
    narrow = [tf.cast(r, g.dtype) for r, g in zip(reduced.gradients, gradients, strict=True)]
    after = BucketState(
        None if residuals is None else [tf.zeros_like(r) for r in residuals],
        None if chunk is None else tf.zeros_like(chunk),
        state.velocities,
    )
    return Reduced(narrow, after, tf.reduce_all([is_finite(r) for r in narrow]))


def add_chunk(tensors: list[tf.Tensor], segments: Any, chunk: tf.Tensor) -> list[tf.Tensor]:
    """Adds the chunk's pieces to the tensors in which they lie."""
    import tensorflow as tf

    sums = list(tensors)
    offset = 0
    for tensor, start, length, _, _ in segments.tolist():
        piece = chunk[offset : offset + length]
        rest = sums[tensor].shape.num_elements() - start - length
        sums[tensor] += tf.reshape(tf.pad(piece, [[start, rest]]), sums[tensor].shape)
        offset += length
    return sums
