"""What a Keras optimizer does at a step, arranged so that it works in a strategy's replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from gradcomp.optimizer import DistributedOptimizer


class StrategyOptimizer(DistributedOptimizer):
    """A distributed optimizer that accumulates and overwrites by averages under a strategy too.

    Keras decides both in a condition within a replica, where replicas can't meet. Here they meet
    first and decide together.
    """

    def _backend_apply_gradients(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> None:
        if not tf.distribute.has_strategy() or self.alone:
            super()._backend_apply_gradients(grads, trainable_variables)
            return
        optimizer: Any = self
        self._exchange = self._exchange_of(trainable_variables)

        def update(grads: Sequence[Any]) -> None:
            reduced = optimizer._clip_gradients(grads)
            optimizer._apply_weight_decay(trainable_variables)
            optimizer._backend_update_step(reduced, trainable_variables, optimizer.learning_rate)

        steps = optimizer.gradient_accumulation_steps
        if steps:
            accumulators = [
                optimizer._accumulated_gradients[optimizer._get_variable_index(v)]
                for v in trainable_variables
            ]
            optimizer._backend_increment_gradient_accumulators(grads, accumulators)

            def update_and_empty() -> None:
                update([accumulator.value / steps for accumulator in accumulators])
                _assign_in_each(accumulators, tf.zeros_like)

            _together_if(_ends(optimizer._iterations, steps), update_and_empty)
        else:
            update(grads)
        if optimizer.use_ema:
            averaged = optimizer._trainable_variables
            optimizer._update_model_variables_moving_average(averaged)
            if optimizer.ema_overwrite_frequency:
                _when_met(
                    _ends(optimizer.iterations, optimizer.ema_overwrite_frequency),
                    lambda: optimizer._overwrite_model_variables_with_average_value(averaged),
                )


def _ends(count: Any, steps: int) -> tf.Tensor:
    """Whether the step after `count`, a Keras variable or a tensor, ends a run of `steps`."""
    return tf.equal((tf.convert_to_tensor(count) + 1) % steps, 0)


def _when_met(condition: tf.Tensor, action: Callable[[], Any]) -> None:
    """Does `action` in cross-replica context if `condition`, which is equal in all replicas."""

    def cross(strategy: tf.distribute.Strategy, condition: Any) -> None:
        def act() -> bool:
            action()
            return True

        tf.cond(strategy.experimental_local_results(condition)[0], act, lambda: False)

    tf.distribute.get_replica_context().merge_call(cross, args=(condition,))


def _together_if(condition: tf.Tensor, action: Callable[[], Any]) -> None:
    """Does `action` in every replica's context if `condition`, which is equal in all of them."""
    strategy = tf.distribute.get_strategy()
    _when_met(condition, lambda: strategy.extended.call_for_each_replica(action))


def _assign_in_each(variables: Sequence[Any], new: Callable[[tf.Tensor], tf.Tensor]) -> None:
    """Assigns each replica's copy of Keras variables, which need not be equal."""

    def cross(strategy: tf.distribute.Strategy) -> None:
        for variable in variables:
            strategy.extended.update(variable.value, lambda v: v.assign(new(v)), group=False)

    tf.distribute.get_replica_context().merge_call(cross)
