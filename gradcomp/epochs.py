"""Which epoch it is, for warm-ups: told by Keras's `fit`, or by a loop of one's own."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import keras

from gradcomp import live


def begin_epoch(epoch: int) -> None:
    """Tells warm-ups that an epoch begins, in a training loop of your own; `fit` does it by itself.

    Call it on every rank at the start of each epoch. Ranks need not be in step: they exchange
    gradients in the stage of the one that is least far.

    Args:
      epoch: counted from 0, also where training was resumed.

    Raises:
      ValueError: not such a number.
    """
    if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
        raise ValueError(f"epoch must be an integer of at least 0, got {epoch!r}")
    live.epoch = epoch
    for reducer in live.reducers().values():
        reducer.epoch.set(epoch)


def follow_fit(needs: type) -> None:
    """Makes Keras tell each optimizer of a model that is a `needs` when epochs begin and end.

    An optimizer is not told by Keras, and a callback would be a second line for the user to add.
    So the methods with which Keras tells all callbacks are wrapped, for all models.
    """
    callbacks = keras.callbacks.CallbackList
    begin, end = callbacks.on_epoch_begin, callbacks.on_epoch_end
    if getattr(begin, "tells_optimizers", False):
        return

    @functools.wraps(begin)
    def on_epoch_begin(self: Any, epoch: int, logs: Any = None) -> None:
        changed = [optimizer.begin_epoch(epoch) for optimizer in _optimizers(self.model, needs)]
        if any(changed):
            self.model.make_train_function(force=True)
        begin(self, epoch, logs)

    @functools.wraps(end)
    def on_epoch_end(self: Any, epoch: int, logs: Any = None) -> None:
        # First: what callbacks save is the state with which the next epoch begins.
        for optimizer in _optimizers(self.model, needs):
            optimizer.end_epoch()
        end(self, epoch, logs)

    on_epoch_begin.tells_optimizers = True  # type: ignore[attr-defined]
    callbacks.on_epoch_begin, callbacks.on_epoch_end = on_epoch_begin, on_epoch_end


def _optimizers(model: Any, needs: type) -> Iterator[Any]:
    """A model with a train step of its own may have several."""
    if model is None:
        return
    found = {id(o): o for o in (getattr(model, "optimizer", None), *vars(model).values())}
    for optimizer in found.values():
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        if isinstance(inner, needs):
            yield inner
