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
    bucket: Bucket, rank: int, old: BucketState, new: BucketState, present: Sequence[tf.Tensor]
) -> BucketState:
    """`new` where a variable was reduced, `old` where no rank had a gradient for it.

    The reduced value of an absent variable is thrown away, and with it what residuals sent.

    Args:
      present: bool scalar for each variable of the bucket, whether any rank had a gradient.
    """
    import tensorflow as tf

    before, after = old.residuals, new.residuals
    if before is None or after is None:
        return new

    def kept() -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        residuals = [
            tf.where(here, sent, waiting)
            for here, waiting, sent in zip(present, before, after, strict=True)
        ]
        chunks = []
        if new.chunk_residual is not None:
            segments = bucket.chunks[rank].segments
            here = tf.repeat(tf.gather(tf.stack(present), segments[:, 0]), segments[:, 2])
            chunks = [tf.where(here, new.chunk_residual, old.chunk_residual)]
        return residuals, chunks

    def all_new() -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        return list(after), [new.chunk_residual] if new.chunk_residual is not None else []

    # Selecting costs a pass over all residuals: only where somebody is absent.
    residuals, chunks = tf.cond(tf.reduce_all(present), all_new, kept)
    return BucketState(residuals, chunks[0] if chunks else None)


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
