"""The Keras callback that saves state while `fit` runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras

from gradcomp.state import save_state


class SaveState(keras.callbacks.Callback):
    """Saves residuals, weights, seeds and optimizer variables of all ranks; see `save_state`.

    Add it on every rank. To go on from what it saved:

      >>> done = gc.restore_state(folder, model=model) or 0
      >>> model.fit(batches.skip(done), callbacks=[gc.SaveState(folder, every=100, done=done)])

    Args:
      folder: where; each rank writes a file of its own.
      every: batches between two saves; None saves at the end of each epoch.
      done: batches before this `fit`; what `restore_state` returned.
    """

    def __init__(self, folder: str | Path, every: int | None = None, *, done: int = 0) -> None:
        super().__init__()
        if every is not None and every < 1:
            raise ValueError(f"every must be at least 1 batch, or None for epochs, got {every}")
        self.folder = folder
        self.every = every
        self.done = done
        self._in_epoch = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._in_epoch = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        # With steps_per_execution this is told once for several batches, of the last one's index.
        before, self.done = self.done, self.done + batch + 1 - self._in_epoch
        self._in_epoch = batch + 1
        if self.every is not None and self.done // self.every > before // self.every:
            save_state(self.folder, model=self.model, step=self.done)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self.every is None:
            save_state(self.folder, model=self.model, step=self.done)
