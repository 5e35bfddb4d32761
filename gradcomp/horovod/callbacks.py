"""Keras callbacks for Horovod jobs."""

from __future__ import annotations

from typing import Any

import keras

from gradcomp.horovod.functions import broadcast_variables


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Starts all ranks from the weights and the optimizer state of `root_rank`.

    Needed when weights are initialized at random or restored on one rank. Residuals stay each
    rank's own. Variables that exist when training begins are broadcast before the first batch,
    the others after it.
    """

    def __init__(self, root_rank: int = 0) -> None:
        super().__init__()
        self.root_rank = root_rank
        self._done = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self.model.built and getattr(self.model.optimizer, "built", True):
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._broadcast()

    def _broadcast(self) -> None:
        if self._done:
            return
        optimizer = self.model.optimizer
        variables = list(self.model.weights) + (list(optimizer.variables) if optimizer else [])
        broadcast_variables(variables, self.root_rank)
        self._done = True
