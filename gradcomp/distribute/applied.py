"""Tells a reduction of gradients from all others: it happens while a Keras optimizer is applied."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from gradcomp import live
from gradcomp.distribute.engine import engine_of
from gradcomp.optimizer import DistributedOptimizer
from gradcomp.plan import describe


@dataclass
class Application:
    """An optimizer that is being applied in a replica.

    Attributes:
      optimizer: a Keras optimizer that is not distributed by itself.
      variables: Keras variables that have a gradient, in the order in which these are reduced.
      reduced: whether a `CompressedAllReduce` has got them.
    """

    optimizer: Any
    variables: list[Any]
    reduced: bool = False

    @property
    def indices(self) -> list[int]:
        """Of `variables` among those that the optimizer was built with."""
        return [self.optimizer._get_variable_index(variable) for variable in self.variables]


# Replicas take turns, each up to the reduction: when it happens all of them are in here, with the
# same optimizer.
_applications: list[Application] = []


def take() -> Application | None:
    """What is being applied now, marked as reduced; None outside of `apply`."""
    for application in _applications:
        application.reduced = True
    return _applications[-1] if _applications else None


def watch(reduction: type) -> None:
    """Makes Keras tell when an optimizer is applied, under strategies that use a `reduction`."""
    optimizer = keras.optimizers.Optimizer
    if not getattr(optimizer.apply, "watched", False):
        optimizer.apply = _watched(optimizer.apply, reduction)


def _watched(apply: Any, reduction: type) -> Any:
    around = (DistributedOptimizer, keras.optimizers.LossScaleOptimizer)

    @functools.wraps(apply)
    def watched(self: Any, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        extended = tf.distribute.get_strategy().extended
        uses_it = isinstance(getattr(extended, "_cross_device_ops", None), reduction)
        if isinstance(self, around) or not uses_it:
            apply(self, grads, trainable_variables)
            return
        grads = list(grads)
        variables = (
            self._trainable_variables if trainable_variables is None else trainable_variables
        )
        pairs = list(zip(grads, variables, strict=True))
        application = Application(self, [v for g, v in pairs if _is_reduced(g, v)])
        _applications.append(application)
        try:
            apply(self, grads, variables)
        finally:
            _applications.remove(application)
        _tell(application)

    watched.watched = True  # type: ignore[attr-defined]
    return watched


def _is_reduced(gradient: Any, variable: Any) -> bool:
    return gradient is not None and not getattr(variable, "overwrite_with_gradient", False)


def _tell(application: Application) -> None:
    """Notes for `gc.report` whether gradients went past `CompressedAllReduce`; warns once."""
    optimizer = application.optimizer
    if application.reduced or not application.variables:
        live.bypass(optimizer, None)
        return
    strategy = tf.distribute.get_strategy()
    alone = strategy.num_replicas_in_sync == 1
    why, remedy = _ALONE if alone else _REPLACED
    told = live.Bypass(
        name=optimizer.name,
        engine=engine_of(strategy),
        variables=tuple(describe(optimizer._trainable_variables)),
        given=frozenset(application.indices),
        alone=alone,
        why=why,
    )
    live.bypass(optimizer, told)
    _say_once(f"{why}{remedy}")


_ALONE = "the strategy has one replica", ", so there is nothing to exchange"
_REPLACED = (
    "the strategy has replaced CompressedAllReduce by a reduction of its own",
    ", as it does where XLA compiles for GPUs: pass jit_compile=False, or wrap the optimizer in "
    "gc.DistributedOptimizer",
)


@functools.cache
def _say_once(why: str) -> None:
    warnings.warn(f"gradients are not compressed: {why}", stacklevel=5)
