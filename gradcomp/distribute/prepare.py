"""`gc.prepare`: Keras's `fit` under `MultiWorkerMirroredStrategy`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from gradcomp import variables
from gradcomp.distribute import lost, start
from gradcomp.optimizer import DistributedOptimizer

_WORKERS = tf.distribute.MultiWorkerMirroredStrategy


def prepare(model: keras.Model) -> keras.Model:
    """Makes `fit`, `evaluate` and `predict` work under `MultiWorkerMirroredStrategy`.

    Keras 3 itself fails there: it averages a batch over workers to build the model, and scalars
    along an axis that they don't have. A model of another strategy, or of none, is left alone.

    Args:
      model: built in the strategy's scope; before or after `compile`.

    Returns:
      `model`. It keeps its class's name, so that it is saved and loaded as before.
    """
    if isinstance(model.distribute_strategy, _WORKERS) and not isinstance(model, _Prepared):
        base = type(model)
        names = {"__module__": base.__module__, "__qualname__": base.__qualname__}
        model.__class__ = type(base.__name__, (_Prepared, base), names)
        model.train_function = model.test_function = None
    return model


class _Prepared:
    """In front of a model's class."""

    _starting = False  # whether `fit` has been called, and has made no step yet

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        model: Any = self
        if getattr(model, "optimizer", None) is not None and model.built:
            variables.build_optimizer(model)  # callbacks that restore it would do it out of scope
        model._starting = True
        with lost.told():
            return super().fit(*args, **kwargs)  # type: ignore[misc]

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        with lost.told():
            return super().evaluate(*args, **kwargs)  # type: ignore[misc]

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        with lost.told():
            return super().train_on_batch(*args, **kwargs)  # type: ignore[misc]

    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        with lost.told():
            return super().test_on_batch(*args, **kwargs)  # type: ignore[misc]

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Nothing: a model that is not built yet is built while its first step is traced."""

    def make_train_function(self, force: bool = False) -> None:
        model: Any = self
        if force or model.train_function is None:
            model.train_function = _from_one_start(model, _execution_of(model, model.train_step))

    def make_test_function(self, force: bool = False) -> None:
        model: Any = self
        if force or model.test_function is None:
            model.test_function = _execution_of(model, model.test_step)


def _execution_of(model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Runs `steps_per_execution` steps from an iterator; returns the last one's metrics."""
    strategy = model.distribute_strategy

    def on_batch(batch: Any) -> Any:
        per_replica = strategy.run(step, args=(_without_optionals(batch),))
        return tf.nest.map_structure(
            lambda value: strategy.reduce(tf.distribute.ReduceOp.MEAN, value, axis=None),
            per_replica,
        )

    def from_iterator(iterator: Any) -> Any:
        outputs = on_batch(next(iterator))
        for _ in tf.range(model.steps_per_execution - 1):
            batch = iterator.get_next_as_optional()
            if batch.has_value():  # data may end in the middle
                outputs = on_batch(batch.get_value())
        return outputs

    compiled = functools.partial(tf.function, reduce_retracing=True)
    on_data = on_batch if model.run_eagerly else compiled(on_batch)
    several = from_iterator if model.run_eagerly else compiled(from_iterator)

    def function(iterator: Any) -> Any:
        if isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
            return several(iterator)
        return on_data(next(iterator))  # `train_on_batch` brings one batch

    return function


def _from_one_start(model: Any, execution: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Compares workers when `fit` has called all that may restore something."""

    def function(iterator: Any) -> Any:
        optimizer = _exchanging(model)
        if model._starting and optimizer is not None and optimizer.built:
            start.agree(optimizer)
        model._starting = False
        return execution(iterator)

    return function


def _exchanging(model: Any) -> Any:
    """The model's optimizer where it is distributed by gradcomp, else None."""
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return inner if isinstance(inner, DistributedOptimizer) else None


def _without_optionals(batch: Any) -> Any:
    """Keras's datasets say "no sample weights" by an empty optional."""
    return tf.nest.map_structure(
        lambda part: None if isinstance(part, tf.experimental.Optional) else part, batch
    )


def demand_prepare() -> None:
    """Makes `fit` name `gc.prepare` where Keras would fail with an error that says nothing."""
    for name in ("fit", "evaluate"):
        method = getattr(keras.Model, name)
        if not getattr(method, "demands_prepare", False):
            setattr(keras.Model, name, _demanding(method))


def _demanding(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def demanding(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            _exchanging(self) is not None
            and isinstance(self.distribute_strategy, _WORKERS)
            and not isinstance(self, _Prepared)
        ):
            raise RuntimeError(
                f"Keras 3 can't {method.__name__} under MultiWorkerMirroredStrategy: write "
                "gc.prepare(model) after it is built"
            )
        return method(self, *args, **kwargs)

    demanding.demands_prepare = True  # type: ignore[attr-defined]
    return demanding
