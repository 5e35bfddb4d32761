"""Any Keras 3 optimizer, made to exchange its gradients before it uses them.

Keras calls `_clip_gradients` exactly once for each update: after gradients were accumulated, before
weight decay and the update. Exchanging there makes clipping act on the reduced gradient, as it does
in a single process with the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from gradcomp.options import Options
from gradcomp.plan import Plan
from gradcomp.reducer import Reducer, Traffic

MakeReducer = Callable[[Sequence[Any], Options], Reducer]


class DistributedOptimizer:
    """What a distributed optimizer can do beside what its Keras class does.

    `distribute` puts this class in front of the optimizer's own.
    """

    _make_reducer: MakeReducer  # set by the engine, see `distributed_class`
    _options: Options
    _reducer: Reducer | None = None

    @property
    def options(self) -> Options:
        """How this optimizer exchanges gradients."""
        return self._options

    @property
    def plan(self) -> Plan:
        """What is sent for each variable; known once the optimizer is built. Print it."""
        return self._built_reducer().plan

    def traffic(self) -> Traffic:
        """Steps and bytes so far on this rank."""
        return self._built_reducer().traffic()

    def _built_reducer(self) -> Reducer:
        if self._reducer is None:
            raise ValueError(
                "the optimizer does not know its variables yet: call "
                "`optimizer.build(model.trainable_variables)` or train a step first"
            )
        return self._reducer

    def build(self, variables: Sequence[Any]) -> None:
        super().build(variables)  # type: ignore[misc]
        self._reducer = self._make_reducer(variables, self._options)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        optimizer: Any = self
        grads = list(grads)
        if trainable_variables is None or not grads:
            variables = optimizer._trainable_variables
        else:
            variables = list(trainable_variables)
            if not optimizer.built:
                with keras.name_scope(optimizer.name):
                    self.build(variables)
            optimizer._check_variables_are_known(variables)
        # Keras drops variables without a gradient; other ranks may have one.
        row: list[Any] = [None] * len(optimizer._trainable_variables)
        for gradient, variable in zip(grads, variables, strict=False):
            row[optimizer._get_variable_index(variable)] = gradient
        pairs = [
            (gradient, variable)
            for gradient, variable in zip(
                self._built_reducer().agree(row), optimizer._trainable_variables, strict=True
            )
            if gradient is not None
        ]
        super().apply(  # type: ignore[misc]
            [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        )

    def _backend_apply_gradients(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> None:
        # `_clip_gradients` is not told whose gradients it gets.
        optimizer: Any = self
        self._clipped = [optimizer._get_variable_index(v) for v in trainable_variables]
        super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]

    def _clip_gradients(self, grads: Sequence[Any]) -> list[Any]:
        reducer = self._built_reducer()
        row: list[Any] = [None] * len(reducer.plan.variables)
        for index, gradient in zip(self._clipped, grads, strict=True):
            row[index] = gradient
        reduced = reducer.reduce(row)
        return super()._clip_gradients([reduced[i] for i in self._clipped])  # type: ignore[misc]

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        return grads_and_vars  # reduced already

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "gradcomp": self._options.get_config()}  # type: ignore[misc]

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        config = dict(config)
        options = Options.from_config(config.pop("gradcomp"))
        optimizer = super().from_config(config, custom_objects)  # type: ignore[misc]
        optimizer._options = options
        return optimizer


_classes: dict[tuple[type, MakeReducer], type] = {}


def distributed_class(base: type, make_reducer: MakeReducer, package: str) -> type:
    """`base` with `DistributedOptimizer` in front, registered so that saved models find it."""
    key = (base, make_reducer)
    if key not in _classes:
        members = {"_make_reducer": staticmethod(make_reducer), "__module__": base.__module__}
        created = type(f"Distributed{base.__name__}", (DistributedOptimizer, base), members)
        _classes[key] = keras.saving.register_keras_serializable(package)(created)
    return _classes[key]


def distribute(
    optimizer: keras.optimizers.Optimizer, options: Options, make_reducer: MakeReducer, package: str
) -> Any:
    """Makes `optimizer` itself exchange its gradients, and returns it.

    The object keeps its state and all that its class does; only its class is replaced by one that
    derives from it. So an optimizer that was built, or has no faithful config, loses nothing.

    Raises:
      TypeError: not a Keras 3 optimizer, or one that can't be distributed.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"DistributedOptimizer takes a Keras 3 optimizer such as keras.optimizers.Adam(), got "
            f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        )
    if isinstance(optimizer, DistributedOptimizer):
        raise TypeError(f"optimizer {optimizer.name!r} is distributed already; wrap it once")
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise TypeError(
            "a LossScaleOptimizer decides from one rank's gradients whether to skip a step, so "
            "that ranks would wait for each other forever; pass its inner optimizer, and train in "
            "float32 or mixed_bfloat16"
        )
    distributed: Any = optimizer
    distributed.__class__ = distributed_class(type(optimizer), make_reducer, package)
    distributed._options = options
    if optimizer.built:
        distributed._reducer = make_reducer(distributed._trainable_variables, options)
    return distributed
