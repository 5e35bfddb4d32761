"""Keeps the best model."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import keras


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """`keras.callbacks.ModelCheckpoint` that keeps the best model only, and writes on rank 0 only.

    Rank 0 decides which is best. Put `MetricAverageCallback` before it to decide by all ranks'
    mean.

    Args:
      monitor, verbose, save_weights_only, mode, save_freq: as in Keras and Horovod.
      filepath: where to save, ending in ".keras", or ".weights.h5" with `save_weights_only`. As in
        Horovod it may be set later, as the attribute of this name.

    Raises:
      ValueError: a file name that Keras can't save to; or training begins without one.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        *,
        filepath: Any = None,
    ) -> None:
        # Keras takes no None, but looks at the ending only.
        ending = ".weights.h5" if save_weights_only else ".keras"
        super().__init__(
            ending if filepath is None else filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath: Any = self.filepath if filepath is not None else None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self.filepath is None:
            raise ValueError(
                "BestModelCheckpoint does not know where to save: pass filepath='best.keras' or "
                "set its attribute `filepath`"
            )
        super().on_train_begin(logs)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if hvd.rank() == 0:
            super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if hvd.rank() == 0:
            super().on_epoch_end(epoch, logs)
