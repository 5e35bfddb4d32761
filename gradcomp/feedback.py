"""Error feedback: what a payload drops is kept and added to the next gradient.

Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
arXiv:1901.09847. The addition itself is fused with encoding, in the kernels. Here is what happens
around it: which residuals exist, and when new ones replace the old.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcomp.bucket import Bucket

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True)
class BucketState:
    """What error feedback keeps for one bucket on one rank; None where there is none.

    Attributes:
      residuals: float32, one a variable, in the bucket's order, of the variable's shape.
      chunk_residual: float32 [chunk elements], of the chunk that the rank sums in two-phase.
    """

    residuals: list[tf.Tensor] | None = None
    chunk_residual: tf.Tensor | None = None


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

    The reduced value of an absent variable is thrown away, and with it what residuals sent.

    Args:
      missing: positions in the bucket of the variables that have no gradient on this rank.
      present: bool [variables of the bucket], whether any rank had a gradient.
    """
    import tensorflow as tf

    if old.residuals is None or new.residuals is None:
        return new
    residuals = list(new.residuals)
    for position in missing:
        residuals[position] = tf.where(
            present[position], residuals[position], old.residuals[position]
        )
    after = new.chunk_residual
    if after is None:
        return BucketState(residuals)
    segments = bucket.chunks[rank].segments

    def keep() -> tf.Tensor:
        owned = tf.repeat(tf.gather(present, segments[:, 0]), segments[:, 2])
        return tf.where(owned, after, old.chunk_residual)

    # Selecting costs a pass over the chunk: only where somebody is absent.
    return BucketState(residuals, tf.cond(tf.reduce_all(present), lambda: after, keep))


def commit(
    finite: tf.Tensor,
    residuals: Sequence[tuple[tf.Variable, tf.Tensor]],
    step: tf.Variable,
) -> None:
    """Replaces the residuals and counts the step, all together, only if `finite`.

    A step that is skipped for an overflow thus leaves no trace, and its random bits come again.
    """
    import tensorflow as tf

    def assign() -> tf.Tensor:
        for variable, value in residuals:
            variable.assign(value)
        step.assign_add(1)
        return tf.constant(True)

    tf.cond(finite, assign, lambda: tf.constant(False))
