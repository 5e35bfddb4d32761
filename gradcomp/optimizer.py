"""Any Keras 3 optimizer, made to exchange its gradients before it uses them.

Keras calls `_clip_gradients` exactly once for each update: after gradients were accumulated, before
weight decay and the update. Exchanging there makes clipping act on the reduced gradient, as it does
in a single process with the whole batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from gradcomp import kinds, live
from gradcomp.options import Options, with_momentum
from gradcomp.own_state import OwnState, load_own, save_own, without_own
from gradcomp.plan import Plan
from gradcomp.reducer import Reducer
from gradcomp.traffic import Traffic

# Makes a reducer, or what serves as one; the last argument is the one before. It returns None where
# no engine is running.
MakeReducer = Callable[[Sequence[Any], Options, Any], Any]


class DistributedOptimizer:
    """What a distributed optimizer can do beside what its Keras class does.

    `gradcomp.wrap.distribute` puts this class in front of the optimizer's own.
    """

    _make_reducer: MakeReducer  # set by the engine
    _options: Options
    _reducer: Reducer | None = None
    _is_missing: Callable[[int], bool] = frozenset().__contains__
    _is_present: Callable[[int], Any]
    _exchange: Callable[[Sequence[Any]], list[Any]]
    scaled_by_gradcomp = False
    _epoch: int | None = None  # of Keras's `fit`

    def __setattr__(self, name: str, value: Any) -> None:
        # Keras's LossScaleOptimizer is the one that sets None on an optimizer that is complete. A
        # property would not see it: Keras assigns nothing where the old value is the same object.
        taken_in = name == "loss_scale_factor" and value is None and hasattr(self, "_options")
        if taken_in and not self.scaled_by_gradcomp:
            raise TypeError(
                "keras.optimizers.LossScaleOptimizer around a distributed optimizer looks at one "
                "rank's gradients only: a rank that skips a step leaves the others waiting for "
                "ever. Write gc.LossScaleOptimizer(opt), or make the distributed optimizer after "
                'keras.mixed_precision.set_global_policy("mixed_float16")'
            )
        super().__setattr__(name, value)

    @property
    def options(self) -> Options:
        """How this optimizer exchanges gradients."""
        return self._options

    @property
    def alone(self) -> bool:
        """Whether there is nobody to exchange gradients with, as far as is known."""
        reducer = self._reducer
        return reducer is not None and reducer.alone and not reducer.retired

    @property
    def plan(self) -> Plan:
        """What is sent for each variable; known once the optimizer is built. Print it."""
        return self._built_reducer().plan

    def traffic(self) -> Traffic:
        """Steps and bytes so far on this rank."""
        return self._built_reducer().traffic()

    def _built_reducer(self) -> Reducer:
        optimizer: Any = self
        if (self._reducer is None or self._reducer.retired) and optimizer.built:
            self.make_reducer(optimizer._trainable_variables)
            if self._reducer is None:
                raise RuntimeError(
                    "Horovod is not initialized: call `hvd.init()` at the start of the program"
                )
        if self._reducer is None:
            raise ValueError(
                "the optimizer does not know its variables yet: call "
                "`optimizer.build(model.trainable_variables)` or train a step first"
            )
        return self._reducer

    def make_reducer_in_service(self) -> None:
        """Agrees with all ranks about the variables, if that has not happened among them."""
        self._built_reducer()

    def everywhere(self, verdict: Any) -> Any:
        """True where `verdict`, a bool scalar, is true on all ranks."""
        return self._built_reducer().everywhere(verdict)

    def build(self, variables: Sequence[Any]) -> None:
        optimizer: Any = self
        if optimizer.built:  # once more by a LossScaleOptimizer put around it
            return
        super().build(variables)  # type: ignore[misc]
        if not live.late:
            self.make_reducer(variables)

    def make_reducer(self, variables: Sequence[Any]) -> None:
        """Agrees with all ranks about `variables`; residuals become part of checkpoints."""
        optimizer: Any = self
        self._reducer = self._make_reducer(variables, self._options, self._reducer)
        if self._reducer is not None:
            # By hand: Keras turns its own tracking off while a LossScaleOptimizer builds this one.
            optimizer._track_trackable(OwnState(self._reducer), name="gradcomp", overwrite=True)
            if self._epoch is not None:
                self._reducer.epoch.reach(self._epoch)

    def begin_epoch(self, epoch: int) -> bool:
        """Keras's `fit` calls it; a warm-up that was restored goes on where it was.

        Returns:
          True where steps have to be compiled anew, as an `Auto` has chosen something else.
        """
        self._epoch = epoch
        if self._reducer is None:
            return False
        self._reducer.epoch.reach(epoch)
        return self._reducer.choose_again()

    def end_epoch(self) -> None:
        """Keras's `fit` calls it, before anything is saved at the end of the epoch."""
        if self._reducer is not None:
            self._reducer.epoch.set(self._reducer.epoch.read() + 1)

    def start_velocities(self, velocities: Sequence[Any]) -> None:
        """Goes on with what the momentum of an optimizer that was built has gathered."""
        reducer = self._built_reducer()
        # Each rank's is a part of a sum over ranks, and equals their mean.
        parts = 1 if reducer.average else reducer.plan.world_size
        for index, values in enumerate(velocities):
            for one in reducer.local if values is not None else ():
                one.velocities[index].assign(values / parts)

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)  # type: ignore[misc]
        if self._reducer is not None:
            save_own(self._reducer, store)

    def load_own_variables(self, store: Any) -> None:
        super().load_own_variables(without_own(store))  # type: ignore[misc]
        if self._reducer is not None or live.late:
            load_own(self._reducer, store)

    @tf.autograph.experimental.do_not_convert  # nothing in it depends on a tensor's value
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        optimizer: Any = self
        # Keras accumulates in tensors: slices would be as many rows as the variable has.
        as_dense = self._options.sparse_as_dense or optimizer.gradient_accumulation_steps
        grads = kinds.densified(grads) if as_dense else list(grads)
        if trainable_variables is None or not grads:
            variables = optimizer._trainable_variables
        else:
            variables = list(trainable_variables)
            if not optimizer.built:
                with keras.name_scope(optimizer.name):
                    self.build(variables)
            optimizer._check_variables_are_known(variables)
        reducer = self._built_reducer()
        if not reducer.alone:
            # Keras drops variables without a gradient; other ranks may have one.
            row: list[Any] = [None] * len(optimizer._trainable_variables)
            for gradient, variable in zip(grads, variables, strict=True):
                row[optimizer._get_variable_index(variable)] = gradient
            missing = frozenset(i for i, gradient in enumerate(row) if gradient is None)
            self._is_missing = missing.__contains__
            grads, variables = reducer.fill(row), optimizer._trainable_variables
        super().apply(grads, variables)  # type: ignore[misc]

    def _backend_apply_gradients(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> None:
        self._exchange = self._exchange_of(trainable_variables)
        super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]

    def _exchange_of(self, variables: Sequence[Any]) -> Callable[[Sequence[Any]], list[Any]]:
        """How these variables' gradients are reduced: `_clip_gradients` isn't told whose it gets.

        A function, since Keras and TensorFlow would take a list for state of checkpoints.
        """
        optimizer: Any = self
        indices = [optimizer._get_variable_index(v) for v in variables]
        return lambda gradients: self._reduce(indices, gradients)

    def _clip_gradients(self, grads: Sequence[Any]) -> list[Any]:
        reduced = self._exchange(grads)
        if self._options.momentum is not None:  # clipped before they were accumulated
            return reduced
        return super()._clip_gradients(reduced)  # type: ignore[misc]

    def _reduce(self, indices: Sequence[int], gradients: Sequence[Any]) -> list[Any]:
        reducer = self._built_reducer()
        row: list[Any] = [None] * len(reducer.plan.variables)
        times = self._options.times_accumulated  # Keras hands over the mean of what it accumulated
        for index, gradient in zip(indices, gradients, strict=True):
            if not self._is_missing(index):
                row[index] = gradient if times == 1 else gradient * times
        reduction = reducer.reduce(row)
        self._is_present = reduction.present.__getitem__
        return [reduction.gradients[index] for index in indices]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        update = functools.partial(
            super().update_step,  # type: ignore[misc]
            gradient,
            variable,
            learning_rate,
        )
        self._if_present(variable, update)

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        decay = super()._apply_weight_decay  # type: ignore[misc]
        for variable in variables:
            self._if_present(variable, functools.partial(decay, [variable]))

    def _if_present(self, variable: Any, update: Callable[[], Any]) -> None:
        """Updates a variable that has no gradient here only if it has one on another rank."""
        optimizer: Any = self
        index = optimizer._get_variable_index(variable)
        if not self._is_missing(index):
            update()
            return

        def updated() -> bool:
            update()
            return True

        tf.cond(self._is_present(index), updated, lambda: False)

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        return grads_and_vars  # reduced already

    def get_config(self) -> dict[str, Any]:
        config = {**super().get_config(), "gradcomp": self._options.get_config()}  # type: ignore[misc]
        if self._options.momentum is not None:
            config["momentum"] = self._options.momentum.momentum
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        config = dict(config)
        options = Options.from_config(config.pop("gradcomp"))
        optimizer = super().from_config(config, custom_objects)  # type: ignore[misc]
        optimizer._options, _ = with_momentum(optimizer, options)
        return optimizer
