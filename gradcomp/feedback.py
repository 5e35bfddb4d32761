"""Error feedback: what a payload drops is kept and added to the next gradient.

Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
arXiv:1901.09847. The addition itself is fused with encoding, in the kernels. Here is what happens
around it: which residuals exist, which take part in a step, and when the new ones replace the old.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

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


def withhold(bucket: Bucket, rank: int, state: BucketState, absent: frozenset[int]) -> BucketState:
    """The state for a step in which the variables at positions `absent` take no part.

    What they wait to send must not be sent now, since its reduced value would be thrown away.
    """
    import tensorflow as tf

    if not absent or state.residuals is None:
        return state
    residuals = [
        tf.zeros_like(r) if position in absent else r for position, r in enumerate(state.residuals)
    ]
    chunk = state.chunk_residual
    if chunk is not None:
        chunk = tf.where(_of_absent(bucket, rank, absent), 0.0, chunk)
    return BucketState(residuals, chunk)


def resume(
    bucket: Bucket, rank: int, old: BucketState, new: BucketState, absent: frozenset[int]
) -> BucketState:
    """`new` with what `withhold` held back put in place again."""
    import tensorflow as tf

    if not absent or old.residuals is None or new.residuals is None:
        return new
    residuals = [
        before if position in absent else after
        for position, (before, after) in enumerate(
            zip(old.residuals, new.residuals, strict=True)
        )
    ]
    chunk = new.chunk_residual
    if chunk is not None:
        chunk = tf.where(_of_absent(bucket, rank, absent), old.chunk_residual, chunk)
    return BucketState(residuals, chunk)


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


def _of_absent(bucket: Bucket, rank: int, absent: frozenset[int]) -> np.ndarray:
    """bool [elements of the rank's chunk]: True where they belong to an absent variable."""
    segments = bucket.chunks[rank].segments
    return np.isin(np.repeat(segments[:, 0], segments[:, 2]), list(absent))
