"""Makes a distributed optimizer of a Keras optimizer that exists."""

from __future__ import annotations

from typing import Any

import keras

from gradcomp import epochs, live, xla
from gradcomp.loss_scale import LossScaleOptimizer
from gradcomp.optimizer import DistributedOptimizer, MakeReducer
from gradcomp.options import Options, with_momentum

_classes: dict[tuple[type, MakeReducer], type] = {}


def distributed_class(
    base: type,
    make_reducer: MakeReducer,
    package: str,
    mixin: type[DistributedOptimizer] = DistributedOptimizer,
) -> type:
    """`base` with `mixin` in front, registered so that saved models find it."""
    key = (base, make_reducer)
    if key not in _classes:
        members = {"_make_reducer": staticmethod(make_reducer), "__module__": base.__module__}
        created = type(f"Distributed{base.__name__}", (mixin, base), members)
        _classes[key] = keras.saving.register_keras_serializable(package)(created)
    return _classes[key]


def built_in() -> list[type]:
    """Keras's own optimizers that can be distributed."""
    optimizer = keras.optimizers.Optimizer
    around = (keras.optimizers.LossScaleOptimizer, keras.optimizers.MultiOptimizer)
    found = [c for c in vars(keras.optimizers).values() if isinstance(c, type)]
    return [c for c in found if issubclass(c, optimizer) and c not in (optimizer, *around)]


def distribute(
    optimizer: Any,
    options: Options,
    make_reducer: MakeReducer,
    package: str,
    mixin: type[DistributedOptimizer] = DistributedOptimizer,
) -> Any:
    """Makes `optimizer` itself exchange its gradients.

    The object keeps its state and all that its class does; only its class is replaced by one that
    derives from it. So an optimizer that was built, or has no faithful config, loses nothing.

    Returns:
      `optimizer`; one of Keras's `LossScaleOptimizer` becomes one of ours, around the optimizer
      that exchanges. If the global dtype policy is mixed_float16, where Keras would put its own
      around it, `optimizer` inside a `LossScaleOptimizer` of ours.

    Raises:
      TypeError: not a Keras 3 optimizer, or one that can't be distributed.
      ValueError: it can't accumulate as the options ask.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"DistributedOptimizer takes a Keras 3 optimizer such as keras.optimizers.Adam(), got "
            f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        )
    if isinstance(optimizer, DistributedOptimizer | LossScaleOptimizer):
        name = getattr(optimizer, "name", "")
        raise TypeError(f"optimizer {name!r} is distributed already; wrap it once")
    if isinstance(optimizer, keras.optimizers.MultiOptimizer):
        raise TypeError(
            "keras.optimizers.MultiOptimizer hands each of its optimizers its own gradients and "
            "can't be distributed: use one optimizer for all variables"
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        inner = _exchanging(optimizer.inner_optimizer, options, make_reducer, package, mixin)
        inner.scaled_by_gradcomp = True
        optimizer.__class__ = LossScaleOptimizer
        return optimizer
    distributed = _exchanging(optimizer, options, make_reducer, package, mixin)
    if keras.config.dtype_policy().name == "mixed_float16":
        return LossScaleOptimizer(distributed)
    return distributed


def _exchanging(
    optimizer: Any,
    options: Options,
    make_reducer: MakeReducer,
    package: str,
    mixin: type[DistributedOptimizer],
) -> DistributedOptimizer:
    options, velocities = with_momentum(optimizer, options)
    if options.backward_passes_per_step > 1:
        _accumulate(optimizer, options.backward_passes_per_step)
    xla.keep_train_steps_out(DistributedOptimizer)
    epochs.follow_fit(DistributedOptimizer)
    optimizer.__class__ = distributed_class(type(optimizer), make_reducer, package, mixin)
    optimizer._options = options
    if optimizer.built and not live.late:
        optimizer.make_reducer(optimizer._trainable_variables)
    if velocities is not None:
        optimizer.start_velocities(velocities)
    return optimizer


def _accumulate(optimizer: Any, steps: int) -> None:
    asked = f"backward_passes_per_step={steps}"
    if optimizer.gradient_accumulation_steps:
        raise ValueError(
            f"{asked} and the optimizer's own gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps} both accumulate gradients; give one of them"
        )
    if optimizer.built:
        raise ValueError(
            f"{asked} needs accumulators, and the optimizer is built already: make it distributed "
            "before, or create it with gradient_accumulation_steps"
        )
    optimizer.gradient_accumulation_steps = steps
