"""One rank: trains a model by several methods from the same start, and looks at its accuracy.

As a program it takes one argument, JSON: the model, what is learned by, the seed and the steps.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import gradcomp as gc
import gradcomp.horovod as hvd
from bench.ranks import tell
from bench.train.models import TASKS, Data, Task
from bench.train.step import batches, learned_by, make_step, rate_of

_EVERY = 20  # steps it looks at the accuracy
_TESTED = 2_000  # on that many examples
_AT_ONCE = 500


def train_all(model: str, learns: Sequence[str], seed: int, steps: int) -> list[dict[str, Any]]:
    """What rank 0 found in each training, as `bench.train.rows.Training` has it.

    Raises:
      OutOfSyncError: ranks of a training end with different weights.
    """
    return [_train(TASKS[model], one, seed, steps) for one in learns]


def _train(task: Task, learns: str, seed: int, steps: int) -> dict[str, Any]:
    keras.utils.set_random_seed(seed)
    net, data = task.make(), task.data()
    optimizer = task.optimizer(rate_of(task, steps))
    optimizer.build(net.trainable_variables)
    step = make_step(net, optimizer, learned_by(learns), seed)
    fed = batches(len(data.x_train), task.batch, steps, seed)
    start, curve = _digest(net, data.x_train[fed[0]]), []
    for number, batch in enumerate(fed, 1):
        step(tf.constant(data.x_train[batch]), tf.constant(data.y_train[batch]))
        if number % _EVERY == 0 and number < steps:
            curve.append((number, _accuracy(net, data, _TESTED)))
    gc.check_sync(net)
    return {
        "learns": learns,
        "seed": seed,
        "steps": steps,
        "start": start,
        "curve": curve,
        "accuracy": _accuracy(net, data, len(data.x_test)),
    }


def _accuracy(net: keras.Model, data: Data, examples: int) -> float:
    """In percent, of the first test examples, of which each rank takes its share."""
    mine = slice(hvd.rank(), min(examples, len(data.x_test)), hvd.size())
    x, y = data.x_test[mine], data.y_test[mine]
    right = [
        np.asarray(net(x[i : i + _AT_ONCE], training=False)).argmax(-1) == y[i : i + _AT_ONCE]
        for i in range(0, len(x), _AT_ONCE)
    ]
    told = hvd.allgather_object((int(np.concatenate(right).sum()), y.size))
    return 100 * sum(r for r, _ in told) / sum(size for _, size in told)


def _digest(net: keras.Model, batch: np.ndarray) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(batch).tobytes())
    for weight in net.get_weights():
        digest.update(weight.tobytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    hvd.init()
    found = train_all(**json.loads(sys.argv[1]))
    if hvd.rank() == 0:
        tell(found)
    hvd.shutdown()
