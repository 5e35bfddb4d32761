"""Keras callbacks that keep the state of elastic training up to date, and commit it."""

from __future__ import annotations

import weakref
from typing import Any

import keras


class _Update(keras.callbacks.Callback):
    """Knows where training is. It must be called before a commit, whatever the order of callbacks.

    `CommitStateCallback` calls it first; that Keras then calls it once more changes nothing.
    """

    attribute: str

    def __init__(self, state: Any) -> None:
        super().__init__()
        if not hasattr(state, self.attribute):
            raise ValueError(
                f"the state has no attribute {self.attribute!r}: give it one, e.g. "
                f"hvd.elastic.KerasState(model, {self.attribute}=0)"
            )
        self.state = state

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        _updates.setdefault(self.state, {})[type(self)] = self


_updates: weakref.WeakKeyDictionary[Any, dict[type, _Update]] = weakref.WeakKeyDictionary()


class UpdateBatchStateCallback(_Update):
    """Keeps in `state.batch` how many batches of the running epoch are done; 0 between epochs.

    The first epoch of a `fit` is shortened by the batches that were done before, where its number
    of steps is known.

    Args:
      state: has an attribute `batch`.
    """

    attribute = "batch"

    def __init__(self, state: Any) -> None:
        super().__init__(state)
        self._before = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_begin(logs)
        self._before = self.state.batch

    @property
    def epoch_is_done(self) -> bool:
        """Whether all batches of the running epoch are done, as far as their number is known."""
        return 0 < (self.params.get("steps") or 0) <= self.state.batch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.state.batch = self._before + batch + 1
        if self.epoch_is_done and batch + 1 < self.params["steps"]:
            self.model.stop_training = _END_OF_EPOCH

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._before = self.state.batch = 0
        if self.model.stop_training is _END_OF_EPOCH:
            self.model.stop_training = False


class _EndOfEpoch:
    """True, but not what another callback sets: Keras ends an epoch by what ends training."""


_END_OF_EPOCH = _EndOfEpoch()


class UpdateEpochStateCallback(_Update):
    """Keeps in `state.epoch` how many epochs are done, over all calls of `fit`.

    Args:
      state: has an attribute `epoch`.
    """

    attribute = "epoch"

    def __init__(self, state: Any) -> None:
        super().__init__(state)
        self.initial_epoch = state.epoch
        self._first: int | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_begin(logs)
        self.initial_epoch = self.state.epoch
        self._first = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._first is None:  # 0, or `initial_epoch` of `fit`
            self._first = epoch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.state.epoch = self.initial_epoch + epoch - (self._first or 0) + 1


class CommitStateCallback(keras.callbacks.Callback):
    """Commits the state after every `batches_per_commit` batches, and after each epoch.

    Args:
      state: to be committed.
      batches_per_commit: a commit copies weights, optimizer variables and residuals; after a
        failure, what was done since the last one is done again.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        if batches_per_commit < 1:
            raise ValueError(f"batches_per_commit must be at least 1, got {batches_per_commit}")
        self.state = state
        self.batches_per_commit = batches_per_commit
        self._since = 0
        self._last_batch = -1

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._since = 0  # a worker that has just joined counts from here, too

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._last_batch = -1

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        # With steps_per_execution, Keras calls this once for several batches.
        self._since += batch - self._last_batch
        self._last_batch = batch
        if self._since >= self.batches_per_commit:
            self._since = 0
            others = self._others()
            for update in others:
                update.on_train_batch_end(batch, logs)
            # Of an epoch without batches left `fit` would do one more: its end is committed next.
            if not any(isinstance(u, UpdateBatchStateCallback) and u.epoch_is_done for u in others):
                self.state.commit()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        for update in self._others():
            update.on_epoch_end(epoch, logs)
        self.state.commit()

    def _others(self) -> list[_Update]:
        """Those of the same call of `fit`: Keras gives all its callbacks one and the same dict."""
        found = _updates.get(self.state, {}).values()
        return [update for update in found if update.params is self.params]
