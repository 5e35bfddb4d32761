"""Learning rates that change while training goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd
import keras


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to `initial_lr * multiplier(epoch)` in a range of epochs.

    Args:
      initial_lr: the rate that is multiplied.
      multiplier: function of the epoch, or a number m for mᵉ, e epochs after `start_epoch`.
      start_epoch, end_epoch: epochs from the first up to, and without, the second; None for ever.
      staircase: change at the first batch of an epoch, which is whole then; otherwise at every
        batch, the epoch being epoch + batch / steps_per_epoch.
      momentum_correction: for optimizers with a momentum, see *Source*.
      steps_per_epoch: batches an epoch; None takes what Keras knows.

    Raises:
      ValueError: `initial_lr` is None; the optimizer's rate can't be set, or `steps_per_epoch` is
        needed and not known (both when training begins).

    Source: arXiv:1706.02677, section 3: the velocity that a momentum keeps has learning rates in
    it, so it is scaled by new rate / old rate. Horovod scales the momentum for one batch instead,
    which is the same product; a Keras 3 momentum is a constant of the compiled step.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[Any], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("initial_lr is required: the learning rate to be multiplied, a float")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self.multiplier: Callable[[Any], float] = (
            multiplier if callable(multiplier) else _Exponential(multiplier, start_epoch)
        )

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        optimizer = _innermost(self.model.optimizer)
        if not isinstance(getattr(optimizer, "_learning_rate", None), keras.Variable):
            raise ValueError(
                f"{type(self).__name__} sets optimizer.learning_rate, but that of "
                f"{optimizer.name!r} is a schedule of its own: give the optimizer a float"
            )
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    "Keras does not know the number of batches an epoch: pass steps_per_epoch to "
                    f"{type(self).__name__}"
                )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self.current_epoch < self.start_epoch:
            return
        if self.end_epoch is not None and self.current_epoch >= self.end_epoch:
            return
        if not self.staircase:
            assert self.steps_per_epoch is not None  # since training began
            self._set_rate(self.current_epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._set_rate(self.current_epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["lr"] = self._rate()

    def _rate(self) -> float:
        return float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def _set_rate(self, epoch: float) -> None:
        old = self._rate()
        self.model.optimizer.learning_rate = self.initial_lr * self.multiplier(epoch)
        new = self._rate()
        if self.momentum_correction and old and new != old:
            for velocity in _velocities(_innermost(self.model.optimizer)):
                velocity.assign(velocity * (new / old))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from `initial_lr / size` to `initial_lr` in the first epochs.

    Args:
      initial_lr: the rate at the end, usually that of one process times `hvd.size()`.
      warmup_epochs: how many epochs it takes.
      momentum_correction, steps_per_epoch: as in `LearningRateScheduleCallback`.
      verbose: 1 to print the rate at the end, on rank 0.

    Source: arXiv:1706.02677, section 2.2.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            initial_lr,
            self._warm,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

    def _warm(self, epoch: float) -> float:
        assert self.steps_per_epoch is not None  # since training began
        # One batch ahead, so that the last batch of the last epoch has the full rate.
        epoch += 1 / self.steps_per_epoch
        return (epoch * (hvd.size() - 1) / self.warmup_epochs + 1) / hvd.size()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if epoch == self.warmup_epochs - 1 and self.verbose > 0 and hvd.rank() == 0:
            print(f"\nEpoch {epoch + 1}: the learning rate is warm: {self._rate():g}.")


class _Exponential:
    """mᵉ, e epochs after the start; a class, so that callbacks can be pickled."""

    def __init__(self, base: float, start_epoch: int) -> None:
        self.base = base
        self.start_epoch = start_epoch

    def __call__(self, epoch: float) -> float:
        return float(self.base ** (epoch - self.start_epoch))


def _innermost(optimizer: Any) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer)


def _velocities(optimizer: Any) -> list[Any]:
    """The velocities of Keras's two optimizers whose momentum has learning rates in it."""
    if not getattr(optimizer, "momentum", 0):
        return []
    if isinstance(optimizer, keras.optimizers.SGD):
        velocities = optimizer.momentums
    elif isinstance(optimizer, keras.optimizers.RMSprop):
        velocities = optimizer._momentums
    else:
        velocities = []
    return [v for v in velocities if v is not None]
