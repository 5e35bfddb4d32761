"""One rank: times steps of every method on the link that it has, in turn.

As a program it takes one argument, JSON: the model, the methods' labels and the rounds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import gradcomp.horovod as hvd
from bench.ranks import has_a_host, interface_bytes, tell
from bench.train.models import TASKS
from bench.train.rows import METHODS
from bench.train.step import Step, batches, codecs_of, make_step, rate_of, traced

BLOCK = 4  # steps in a row that are timed together
_SEED = 1


def time_all(model: str, labels: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """What rank 0 found of each method, as `bench.train.rows.Timing` has it.

    All train one network. Where its weights are makes no difference to the time.
    """
    task = TASKS[model]
    methods = [method for method in METHODS if method.label in labels]
    keras.utils.set_random_seed(_SEED)
    net, data = task.make(), task.data()
    optimizer = task.optimizer(rate_of(task, task.steps))
    optimizer.build(net.trainable_variables)
    fed = batches(len(data.x_train), task.batch, BLOCK + 1, _SEED)
    content = [(data.x_train[batch], data.y_train[batch]) for batch in fed]
    steps, found = [], []
    for method in methods:
        step = make_step(net, optimizer, method, _SEED)
        plan = traced(step, *map(tf.constant, content[0]))
        steps.append(step)
        found.append(
            {
                "method": method.label,
                "batch": task.batch * hvd.size(),
                "times": [],
                "sent": 0.0,
                "planned": plan.sent_bytes if plan else 0,
                "codecs": codecs_of(plan),
            }
        )
    turns = list(zip(steps, found, strict=True))
    for number in range(rounds):
        # There and back, so that none always comes after the same other.
        for step, one in turns if number % 2 == 0 else turns[::-1]:
            seconds, sent = _timed(step, content)
            one["times"].append(seconds)
            one["sent"] += sent / rounds
    return found


def _timed(step: Step, content: Sequence[Any]) -> tuple[float, float]:
    """(seconds a step on the slowest rank, bytes a step that a rank sends)."""
    step(*map(tf.constant, content[0]))  # brings what is Horovod's and the caches' up to date
    _gather(0)
    bytes_before, begun = interface_bytes(), time.perf_counter()
    for batch in content[1:]:
        step(*map(tf.constant, batch)).numpy()
    seconds = max(_gather(time.perf_counter() - begun))
    # All have ended, so their last bytes are sent.
    everyones = _gather(interface_bytes() - bytes_before)
    sharing = 1 if has_a_host() else hvd.size()
    return seconds / BLOCK, float(np.mean(everyones)) / sharing / BLOCK


def _gather(value: Any) -> list[Any]:
    everyones: list[Any] = hvd.allgather_object(value)
    return everyones


if __name__ == "__main__":
    hvd.init()
    found = time_all(**json.loads(sys.argv[1]))
    if hvd.rank() == 0:
        tell(found)
    hvd.shutdown()
