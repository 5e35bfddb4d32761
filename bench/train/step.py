"""One step of training by a method, the same for what is timed and for what is learned."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import horovod.tensorflow as horovod
import keras
import numpy as np
import tensorflow as tf

import gradcomp as gc
import gradcomp.horovod as hvd
from bench.train.models import Task
from bench.train.rows import BETWEEN, HALF, METHODS, Method
from gradcomp import live
from gradcomp.plan import Plan

Step = Callable[[Any, Any], Any]


def learned_by(learns: str) -> Method | Sequence[str]:
    """The method of a label, or what stands in for one: a codec for each variable."""
    labelled = next((method for method in METHODS if method.label == learns), None)
    return labelled or learns.split(BETWEEN)


def make_step(
    net: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    how: Method | Sequence[str],
    seed: int,
) -> Step:
    """A compiled step that takes a rank's batch and labels.

    Args:
      how: a method, or a codec for each trainable variable.
      seed: of stochastic rounding.
    """
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    variables = net.trainable_variables
    reduced = _horovods(how) if isinstance(how, Method) and how.spec is None else _ours(how, seed)

    @tf.function(autograph=False)
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as plain:
            value = loss(y, net(x, training=True))
        optimizer.apply(reduced(plain, value, variables), variables)
        return value

    return step


def _horovods(method: Method) -> Callable[..., Any]:
    compression = horovod.Compression.fp16 if method is HALF else horovod.Compression.none

    def reduced(plain: tf.GradientTape, value: tf.Tensor, variables: Sequence[Any]) -> Any:
        tape = horovod.DistributedGradientTape(plain, compression=compression)
        # Horovod does not know Keras's variables.
        return tape.gradient(value, [variable.value for variable in variables])

    return reduced


def _ours(how: Method | Sequence[str], seed: int) -> Callable[..., Any]:
    def reduced(plain: tf.GradientTape, value: tf.Tensor, variables: Sequence[Any]) -> Any:
        chosen = how.spec if isinstance(how, Method) else _policy(variables, how)
        tape = hvd.DistributedGradientTape(plain, compression=chosen, seed=seed)
        return tape.gradient(value, variables)

    return reduced


def _policy(variables: Sequence[Any], specs: Sequence[str]) -> gc.Policy:
    pairs = zip(variables, specs, strict=True)
    return gc.Policy(rules=[(f"^{re.escape(v.path)}$", spec) for v, spec in pairs])


def traced(step: Step, x: Any, y: Any) -> Plan | None:
    """Traces a step, in which an auto measures and chooses, and returns its plan; None of Horovod.

    Args:
      x, y: a batch and its labels, of which only shapes and dtypes matter.
    """
    before = set(live.reducers())
    step.get_concrete_function(x, y)  # type: ignore[attr-defined]
    made = [reducer for key, reducer in live.reducers().items() if key not in before]
    return made[0].plan if made else None


def codecs_of(plan: Plan | None) -> list[str]:
    """Of each variable, in the model's order; empty of Horovod."""
    if plan is None:
        return []
    specs = {
        variable.index: bucket.codec.spec if bucket.codec else "none"
        for bucket in plan.buckets
        for variable in bucket.variables
    }
    return [specs[variable.index] for variable in plan.variables]


def rate_of(task: Task, steps: int) -> Any:
    """Rises over a tenth of the steps, then falls to nothing."""
    rise = steps // 10
    return keras.optimizers.schedules.CosineDecay(
        task.rate / 20, steps - rise, warmup_target=task.rate, warmup_steps=rise
    )


def batches(examples: int, batch: int, steps: int, seed: int) -> list[np.ndarray]:
    """The indices of this rank's examples in each step: its share in the seed's order, again and
    again.
    """
    order = np.random.default_rng(seed).permutation(examples)
    repeated = np.resize(order[hvd.rank() :: hvd.size()], steps * batch)
    return list(repeated.reshape(steps, batch))
