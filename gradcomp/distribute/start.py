"""Where workers begin to train: all at the same point, whatever each of them has restored."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import tensorflow as tf

from gradcomp import live
from gradcomp.errors import StateError


class Start(NamedTuple):
    """What a worker is about to go on with."""

    epoch: int
    updates: int  # of the weights
    exchanges: int  # that made the residuals

    def __str__(self) -> str:
        return f"epoch {self.epoch + 1} after {self.updates} updates, {self.exchanges} exchanges"


def agree(optimizer: Any) -> None:
    """Compares where workers begin; all of them call it before the first step of a `fit`.

    Warns where the residuals are of later steps than the weights.

    Args:
      optimizer: a distributed one, built for a strategy's replicas.

    Raises:
      StateError: they begin at different points, on all of them.
    """
    exchanges = max(int(reducer.step.numpy()) for reducer in optimizer._reducer.local)
    updates = int(tf.convert_to_tensor(optimizer.iterations))
    mine = Start(optimizer._epoch or 0, updates, exchanges)
    starts = live.world().all_gather_object(mine, name="gradcomp.start")
    if len(set(starts)) > 1:
        told = "; ".join(f"worker {worker}: {start}" for worker, start in enumerate(starts))
        raise StateError(
            f"workers begin at different points ({told}): what they restored was saved at "
            "different times, as it is where one dies while it saves. Copy one worker's backup "
            "over the others' (it holds the residuals of all), or use gradcomp.SaveState, of which "
            "the newest is restored that all workers have"
        )
    if mine.exchanges > mine.updates:
        warnings.warn(
            f"residuals are newer than weights ({mine}): they were not restored from the same "
            "save. Restore residuals with the weights that were saved beside them: "
            "gradcomp.save_state(path, model=model) and restore_state(path, model=model) do",
            stacklevel=2,
        )
