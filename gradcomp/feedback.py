"""Error feedback: what a payload drops is kept and added to the next gradient.

Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
arXiv:1901.09847. The addition itself is fused with encoding, in the kernels. Here is what happens
around it: which residuals exist, and when new ones replace the old.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradcomp.bucket import Bucket

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True)
class BucketState:
    """What error feedback keeps for one bucket on one rank; None where there is none.

    Attributes:
      residuals: float32, one a variable, in the bucket's order, of the variable's shape.
      chunk_residual: float32 [chunk elements], of the chunk that the rank sums in two-phase.
      velocities: those of momentum correction, one a variable, in the bucket's order.
    """

    residuals: list[tf.Tensor] | None = None
    chunk_residual: tf.Tensor | None = None
    velocities: list[tf.Tensor] | None = None


def has_feedback(bucket: Bucket) -> bool:
    """True where the bucket's payload can drop something."""
    return bucket.codec is not None and not bucket.codec.lossless


def keep_absent(
    bucket: Bucket,
    rank: int,
    old: BucketState,
    new: BucketState,
    missing: frozenset[int],
    present: tf.Tensor,
) -> BucketState:
    """`new` where a variable was reduced, `old` where no rank had a gradient for it.

    The reduced value of an absent variable is thrown away, and with it what residuals sent and what
    velocities gathered.

    Args:
      missing: positions in the bucket of the variables that have no gradient on this rank.
      present: bool [variables of the bucket], whether any rank had a gradient.
    """
    import tensorflow as tf

    def kept(
        before: list[tf.Tensor] | None, after: list[tf.Tensor] | None
    ) -> list[tf.Tensor] | None:
        if before is None or after is None:
            return after
        return [
            tf.where(present[position], new, old) if position in missing else new
            for position, (old, new) in enumerate(zip(before, after, strict=True))
        ]

    residuals = kept(old.residuals, new.residuals)
    velocities = kept(old.velocities, new.velocities)
    after = new.chunk_residual
    if after is None:
        return BucketState(residuals, None, velocities)
    segments = bucket.chunks[rank].segments

    def keep() -> tf.Tensor:
        owned = tf.repeat(tf.gather(present, segments[:, 0]), segments[:, 2])
        return tf.where(owned, after, old.chunk_residual)

    # Selecting costs a pass over the chunk: only where somebody is absent.
    chunk_residual = tf.cond(tf.reduce_all(present), lambda: after, keep)
    return BucketState(residuals, chunk_residual, velocities)


def take_chunk(bucket: Bucket, part: Bucket, rank: int, residual: tf.Tensor) -> tf.Tensor:
    """The residual of the chunk of `part`, the bucket without some of its variables."""
    import tensorflow as tf

    if part is bucket:
        return residual
    return tf.concat(
        [residual[:0], *(p for p, kept in _pieces(bucket, part, rank, residual) if kept)], 0
    )


def put_chunk(
    bucket: Bucket, part: Bucket, rank: int, residual: tf.Tensor, new: tf.Tensor
) -> tf.Tensor:
    """The bucket's residual with `new` in the place of what `take_chunk` took."""
    import tensorflow as tf

    if part is bucket:
        return new
    merged, at = [residual[:0]], 0
    for piece, kept in _pieces(bucket, part, rank, residual):
        end = at + piece.shape[0] if kept else at
        merged.append(new[at:end] if kept else piece)
        at = end
    return tf.concat(merged, 0)


def _pieces(
    bucket: Bucket, part: Bucket, rank: int, residual: tf.Tensor
) -> Iterator[tuple[tf.Tensor, bool]]:
    """The residual's segments, and whether each is in `part`."""
    at = 0
    for tensor, _, length, _, _ in bucket.chunks[rank].segments:
        yield residual[at : at + length], bucket.variables[tensor] in part.variables
        at += length


def commit(
    finite: tf.Tensor,
    residuals: Sequence[tuple[tf.Variable, tf.Tensor | tf.IndexedSlices]],
    step: tf.Variable,
) -> None:
    """Replaces the residuals and counts the step, all together, only if `finite`.

    A step that is skipped for an overflow thus leaves no trace, and its random bits come again. Of
    a residual that comes as slices only those rows are written.
    """
    import tensorflow as tf

    def assign() -> tf.Tensor:
        for variable, value in residuals:
            if isinstance(value, tf.IndexedSlices):
                variable.scatter_update(value)
            else:
                variable.assign(value)
        step.assign_add(1)
        return tf.constant(True)

    tf.cond(finite, assign, lambda: tf.constant(False))


def send_carried(
    gradients: Sequence[Any], carried: Mapping[int, tf.Variable], present: tf.Tensor
) -> tuple[list[Any], list[tuple[tf.Variable, tf.Tensor]]]:
    """Adds residuals that nothing compresses any more to gradients that are sent as they are.

    Args:
      gradients: a tensor, `tf.IndexedSlices` or None for each variable.
      carried: by the variable's index, float32 of its shape.
      present: bool, one for each variable; where it is false the residual waits on.

    Returns:
      (gradients to send, what `commit` has to assign: zeros, or what a narrow dtype rounds off).
    """
    import tensorflow as tf

    sent = list(gradients)
    updates = []
    for index, variable in carried.items():
        gradient, old = sent[index], variable.read_value()
        if gradient is None:
            continue
        if isinstance(gradient, tf.IndexedSlices):
            sent[index], left = _with_rows(gradient, old), tf.zeros_like(old)
        else:
            wide = tf.float64 if gradient.dtype == tf.float64 else tf.float32
            corrected = tf.cast(gradient, wide) + tf.cast(old, wide)
            sent[index] = tf.cast(corrected, gradient.dtype)
            left = tf.cast(corrected - tf.cast(sent[index], wide), tf.float32)
        updates.append((variable, tf.where(present[index], left, old)))
    return sent, updates


def is_finite(gradient: Any) -> tf.Tensor:
    """Whether all values of a tensor or of `tf.IndexedSlices` are finite."""
    import tensorflow as tf

    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return tf.reduce_all(tf.math.is_finite(values))


def _with_rows(slices: tf.IndexedSlices, residual: tf.Tensor) -> tf.IndexedSlices:
    """`slices` and the residual's rows that hold something."""
    import tensorflow as tf

    filled = tf.reduce_any(tf.not_equal(residual, 0), axis=list(range(1, residual.shape.rank)))
    rows = tf.where(filled)[:, 0]
    values = tf.cast(tf.gather(residual, rows), slices.values.dtype)
    indices = tf.cast(rows, slices.indices.dtype)
    return tf.IndexedSlices(
        tf.concat([slices.values, values], 0),
        tf.concat([slices.indices, indices], 0),
        slices.dense_shape,
    )
