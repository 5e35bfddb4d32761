"""One rank: trains a model by every method and with every seed, from the same start.

As a program it takes one argument, JSON: the model, the methods' labels, the seeds and the steps.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import horovod.tensorflow as horovod
import keras
import numpy as np
import tensorflow as tf

import gradcomp as gc
import gradcomp.horovod as hvd
from bench.ranks import has_a_host, interface_bytes, tell
from bench.train.models import TASKS, Task
from bench.train.rows import METHODS, Method
from gradcomp import live

_EVALUATIONS = 15  # in a training
_TESTED = 2_000  # examples, of which each evaluation takes the same
Step = Callable[[Any, Any], Any]


def train_all(model: str, labels: Sequence[str], seeds: Sequence[int], steps: int) -> list[Any]:
    """What rank 0 found in each training, seed by seed, as `bench.train.rows.Training` has it.

    Raises:
      OutOfSyncError: ranks of a training end with different weights.
    """
    methods = [method for method in METHODS if method.label in labels]
    return [_train(TASKS[model], method, seed, steps) for seed in seeds for method in methods]


def _train(task: Task, method: Method, seed: int, steps: int) -> dict[str, Any]:
    keras.utils.set_random_seed(seed)
    net, data = task.make(), task.data()
    optimizer = task.optimizer(_rate(task, steps))
    optimizer.build(net.trainable_variables)
    before = set(live.reducers())
    step = _step(net, optimizer, method)
    order = np.random.default_rng(seed).permutation(len(data.x_train))
    mine = order[hvd.rank() :: hvd.size()]
    batches = _batches(mine, task.batch, steps)
    start = _digest(net, data.x_train[batches[0]])
    x, y = (tf.constant(a[batches[0]]) for a in (data.x_train, data.y_train))
    step.get_concrete_function(x, y)  # traced, and an auto's measurements taken, before the clock
    times, curve, sent = [], [], 0
    every = max(1, steps // _EVALUATIONS)
    for number, batch in enumerate(batches, 1):
        x, y = tf.constant(data.x_train[batch]), tf.constant(data.y_train[batch])
        _gather(0)
        bytes_before, begun = interface_bytes(), time.perf_counter()
        step(x, y)
        times.append(time.perf_counter() - begun)
        _gather(0)  # the last bytes are sent
        sent += interface_bytes() - bytes_before
        if number % every == 0 or number == steps:
            curve.append((number, _accuracy(net, data.x_test, data.y_test)))
    gc.check_sync(net)
    everyones = _gather(sent)
    made = [r for key, r in live.reducers().items() if key not in before]
    plan = made[0].plan if made else None
    specs = {b.codec.spec if b.codec else "none" for b in plan.buckets} if plan else set()
    return {
        "method": method.label,
        "seed": seed,
        "start": start,
        "batch": task.batch * hvd.size(),
        "times": times,
        "sent": float(np.mean(everyones)) / steps / (hvd.size() if not has_a_host() else 1),
        "curve": curve,
        "planned": plan.sent_bytes if plan else 0,
        "chosen": ", ".join(sorted(specs)),
    }


def _rate(task: Task, steps: int) -> Any:
    """Rises over a fifth of the steps, then falls to nothing."""
    rise = steps // 5
    return keras.optimizers.schedules.CosineDecay(
        task.rate / 20, steps - rise, warmup_target=task.rate, warmup_steps=rise
    )


def _step(net: keras.Model, optimizer: Any, method: Method) -> Any:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    variables = net.trainable_variables
    half = horovod.Compression.fp16 if method.half else horovod.Compression.none

    @tf.function(autograph=False)
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as plain:
            value = loss(y, net(x, training=True))
        if method.spec is None:
            # Horovod does not know Keras's variables.
            tape = horovod.DistributedGradientTape(plain, compression=half)
            gradients = tape.gradient(value, [v.value for v in variables])
        else:
            tape = hvd.DistributedGradientTape(plain, compression=method.spec)
            gradients = tape.gradient(value, variables)
        optimizer.apply(gradients, variables)
        return value

    return step


def _batches(examples: np.ndarray, batch: int, steps: int) -> list[np.ndarray]:
    """The rank's examples in their order, again and again."""
    repeated = np.resize(examples, steps * batch)
    return list(repeated.reshape(steps, batch))


def _accuracy(net: keras.Model, x: np.ndarray, y: np.ndarray) -> float:
    """In percent, by rank 0; the others wait for its next step."""
    if hvd.rank() != 0:
        return 0.0
    right = [
        np.asarray(net(x[i : i + 500], training=False)).argmax(-1) == y[i : i + 500]
        for i in range(0, min(_TESTED, len(x)), 500)
    ]
    return 100 * float(np.concatenate(right).mean())


def _digest(net: keras.Model, batch: np.ndarray) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(batch).tobytes())
    for weight in net.get_weights():
        digest.update(weight.tobytes())
    return digest.hexdigest()[:16]


def _gather(value: Any) -> list[Any]:
    everyones: list[Any] = hvd.allgather_object(value)
    return everyones


if __name__ == "__main__":
    hvd.init()
    found = train_all(**json.loads(sys.argv[1]))
    if hvd.rank() == 0:
        tell(found)
    hvd.shutdown()
