"""Starts all ranks from the same weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from gradcomp.horovod.broadcast import broadcast_variables
from gradcomp.horovod.functions import unwrap


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Starts all ranks from the weights and the optimizer state of `root_rank`.

    Needed when weights are initialized at random or restored on one rank. The loss scale of mixed
    precision is part of the optimizer's state; residuals stay each rank's own, and so do the seeds
    of dropout. Variables that exist when training begins are broadcast before the first batch; a
    model that is built by its first batch is broadcast after it.

    Args:
      root_rank: rank whose values all get.
      device: as in Horovod, where the broadcast is placed.
      local_variables: a variable, or several, that every rank keeps its own value of.
    """

    def __init__(self, root_rank: int = 0, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self._local: list[Any] = []
        self._done = False
        if local_variables is not None:
            several = isinstance(local_variables, Iterable) and not _is_variable(local_variables)
            for variable in local_variables if several else [local_variables]:
                self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """Leaves a Keras or TensorFlow variable out of the broadcast.

        Raises:
          ValueError: it is no variable.
        """
        if not _is_variable(var):
            raise ValueError(f"local variables must be variables, got {type(var).__name__}")
        self._local.append(unwrap(var))

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
        local = set(map(id, self._local))
        shared = [v for v in map(unwrap, variables) if id(v) not in local]
        with tf.device(self.device or None):
            broadcast_variables(shared, self.root_rank)
        self._done = True


def _is_variable(value: Any) -> bool:
    return isinstance(value, keras.Variable | tf.Variable)
