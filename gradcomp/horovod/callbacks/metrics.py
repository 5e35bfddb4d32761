"""Averages what each rank measured."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from gradcomp.errors import MismatchError
from gradcomp.horovod.broadcast import allgather_object


class MetricAverageCallback(keras.callbacks.Callback):
    """Replaces each metric at the end of an epoch by its mean over all ranks.

    Put it before callbacks that act on metrics (`ReduceLROnPlateau`, `EarlyStopping`,
    `BestModelCheckpoint`, `TensorBoard`), so that all ranks see the same numbers and decide alike.
    The mean does not weigh ranks by their number of samples, as in Horovod.

    Args:
      device: of Horovod's signature; metrics are averaged on the host whatever it is.

    Raises:
      MismatchError: at the end of an epoch, on all ranks, when they have different metrics.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is None:
            logs = {}
        # One gather of an object for all metrics: a rank that lacks one would leave the others
        # waiting in a reduction of its own.
        everyones = allgather_object({name: _number(value) for name, value in logs.items()})
        names = set().union(*everyones)
        for name in sorted(names):
            missing = [rank for rank, metrics in enumerate(everyones) if name not in metrics]
            if missing:
                raise MismatchError(
                    f"metric {name!r} is missing on ranks {missing}: every rank must compile the "
                    "same metrics, and validate if one does"
                )
            mean = np.mean([metrics[name] for metrics in everyones], axis=0)
            logs[name] = float(mean) if np.ndim(mean) == 0 else mean


def _number(value: Any) -> Any:
    return np.asarray(keras.ops.convert_to_numpy(value), np.float64)
