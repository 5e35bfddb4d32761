"""The exchange of a bucket in the way that an `Auto` has chosen, which may change between steps.

Each way leaves its residuals where the others find them. What one can't use, since it has no second
phase or encodes nothing, is sent with the next gradients: the first residual of the rank takes over
the second's contribution, and what is not encoded sends all of it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradcomp.bucket import Bucket
from gradcomp.exchange import Reduced
from gradcomp.feedback import BucketState, is_finite
from gradcomp.hierarchy import Meters
from gradcomp.stages import MakeExchange, Place, add_chunk, exchange_in

if TYPE_CHECKING:
    import tensorflow as tf


def reduce_as_chosen(
    make: MakeExchange,
    alternatives: Sequence[Bucket],
    number: int | tf.Tensor,
    waiting: tf.Tensor,
    meters: Meters,
    place: Place,
    gradients: Sequence[tf.Tensor],
    state: BucketState,
    layout: Bucket,
) -> Reduced:
    """Reduces a bucket in one of several ways.

    Args:
      make: the exchange of a bucket.
      alternatives: the bucket in each way.
      number: of the way that is taken, equal on all ranks; a tensor where it may change.
      waiting: bool scalar, whether residuals may hold what another way has left. It may differ
        between ranks.
      gradients: one a variable, in the bucket's order.
      state: its velocities have this step's gradients in them already.
      layout: the bucket as its residuals are laid out.
    """
    import tensorflow as tf

    def branch(number: int) -> tuple[Any, ...]:
        bucket, own = alternatives[number], meters.fork()
        exchange = make(bucket, own, f".way{number}")
        begun = state
        if bucket.route != "two_phase":
            begun = _without_second(waiting, state, layout, place)
        if bucket.codec is None:
            reduced = _uncompressed(exchange, waiting, gradients, begun)
        else:
            reduced = exchange_in(exchange, bucket, gradients, begun)
        after = reduced.state
        chunk = begun.chunk_residual if after.chunk_residual is None else after.chunk_residual
        return (
            reduced.gradients,
            after.residuals or [],
            [] if chunk is None else [chunk],
            after.velocities or [],
            reduced.finite,
            own.counts(),
        )

    if tf.is_tensor(number):
        branches = [functools.partial(branch, n) for n in range(len(alternatives))]
        told = tf.switch_case(number, branches)
    else:
        told = branch(number)
    reduced, residuals, chunk, velocities, finite, sent = told
    meters.add(sent)
    after = BucketState(
        residuals if state.residuals is not None else None,
        chunk[0] if state.chunk_residual is not None else None,
        velocities if state.velocities is not None else None,
    )
    return Reduced(reduced, after, finite)


def _without_second(
    waiting: tf.Tensor, state: BucketState, layout: Bucket, place: Place
) -> BucketState:
    """The state for a way without a second phase: the first residuals hold all of it."""
    import tensorflow as tf

    residuals, chunk = state.residuals, state.chunk_residual
    if residuals is None or chunk is None:
        return state

    def moved() -> tuple[list[tf.Tensor], tf.Tensor]:
        # In units of the reduced gradient, of which a rank's contribution is a share.
        part = chunk * float(place.contributions)
        segments = layout.chunks[place.keeper].segments
        return add_chunk(residuals, segments, part), tf.zeros_like(chunk)

    firsts, second = tf.cond(waiting, moved, lambda: (list(residuals), chunk))
    return BucketState(firsts, second, state.velocities)


def _uncompressed(
    exchange: Any, waiting: tf.Tensor, gradients: Sequence[tf.Tensor], state: BucketState
) -> Reduced:
    """Sends gradients as they are, and with them all that waits, if anything does."""
    import tensorflow as tf

    residuals = state.residuals
    # On ranks without residuals too, since all of a host have to send the same dtype.
    wide = [tf.cast(g, tf.float32) for g in gradients]

    def whole() -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        assert residuals is not None
        sums = [g + r for g, r in zip(wide, residuals, strict=True)]
        return sums, [tf.zeros_like(r) for r in residuals]

    if residuals is None:
        sent, left = wide, None
    else:
        sent, left = tf.cond(waiting, whole, lambda: (wide, list(residuals)))
    reduced = exchange(sent, BucketState())
    narrow = [tf.cast(r, g.dtype) for r, g in zip(reduced.gradients, gradients, strict=True)]
    finite = [reduced.finite, *(is_finite(n) for n in narrow if n.dtype != tf.float32)]
    after = BucketState(left, state.chunk_residual, state.velocities)
    return Reduced(narrow, after, tf.reduce_all(finite))
