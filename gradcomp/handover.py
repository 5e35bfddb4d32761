"""Hands over what ranks keep to a reducer for other ranks, while the job goes on.

Some of the ranks that exchanged before may be gone, and what they kept is lost; others may be new
and keep nothing yet. What the survivors' residuals add to the gradients to come stays the same.
"""

from __future__ import annotations

import numpy as np

from gradcomp.bucket import Bucket
from gradcomp.reducer import Reducer
from gradcomp.residuals import Snapshot, compare, give

Pieces = dict[int, list[tuple[int, np.ndarray]]]  # by variable (start, values)


def hand_over(reducer: Reducer, kept: Snapshot | None) -> None:
    """Gives a new reducer what its ranks kept with others; all its ranks call it together.

    A survivor keeps its own residuals and velocities, scaled where gradients are averaged over
    another number of ranks. A new rank starts with none. Of the second phase, in which every rank
    keeps a piece of the reduced gradient's residual, the survivors' pieces are put together and cut
    anew.

    Args:
      reducer: has not exchanged anything yet.
      kept: of this rank; None where it is new.

    Raises:
      StateError: `kept` is of other variables, or of another operation.
    """
    if kept is not None:
        compare(reducer, kept.description)
    collective = reducer.collective
    pieces = {} if kept is None else _pieces(kept)
    mine = None if kept is None else (*_counts(kept), sorted(pieces))
    everyones = collective.all_gather_object(mine, name=f"{reducer.name}.kept")
    survivors = [told for told in everyones if told is not None]
    if not survivors:
        return
    has_second = {index for _, _, indices in survivors for index in indices}
    factor = collective.size if reducer.average else 1.0
    scale = 0.0 if kept is None else factor / (kept.world_size if reducer.average else 1.0)
    share = 0.0 if kept is None else factor / len(survivors)
    for bucket in reducer.plan.layouts:
        seconds: dict[int, np.ndarray | None] = {v.index: None for v in bucket.variables}
        if has_second & seconds.keys():
            own = {index: pieces[index] for index in seconds.keys() & pieces.keys()}
            name = f"{reducer.name}.second{bucket.index}"
            seconds |= _together(bucket, collective.all_gather_object(own, name=name))
        firsts = {v.index: np.zeros(v.shape, np.float64) for v in bucket.variables}
        for index in firsts:
            residual = None if kept is None else kept.residual(index)
            if residual is not None:
                firsts[index] = scale * residual.astype(np.float64)
        give(reducer, bucket, firsts, seconds, share)
    for index, variable in reducer.velocities.items():
        velocity = None if kept is None else kept.velocity(index)
        if velocity is not None:
            variable.assign(scale * velocity)
    reducer.send_waiting()
    reducer.step.assign(max(step for step, _, _ in survivors))
    reducer.epoch.reach(max(epoch for _, epoch, _ in survivors))


def _counts(kept: Snapshot) -> tuple[int, int]:
    """Its step, and the epoch of its warm-up."""
    return int(kept.description["step"]), int(kept.description["epoch"])


def _pieces(kept: Snapshot) -> Pieces:
    return {
        index: [(start, kept.archive[name]) for start, name in found]
        for index, found in kept.pieces().items()
    }


def _together(bucket: Bucket, everyones: list[Pieces]) -> dict[int, np.ndarray]:
    """By variable float32 [numel]; zeros where the rank that kept it is gone."""
    whole = {v.index: np.zeros(v.numel, np.float32) for v in bucket.variables}
    for pieces in everyones:
        for index, found in pieces.items():
            for start, values in found:
                whole[index][start : start + values.size] = values
    return whole
