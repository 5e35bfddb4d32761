"""A model trained with one method, in a process of its own, that makes steps when asked to.

It first writes a line of JSON: the gradients' error and the memory of a step. For each line of JSON
that it reads, a number of steps, it writes the list of their durations in seconds.
"""

from __future__ import annotations

import argparse
import ctypes
import gc as garbage
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"  # several processes share one

import keras
import numpy as np
import tensorflow as tf

from bench.activations.methods import METHODS, PLAIN, method
from bench.activations.models import FULL, QUICK, Model
from gradcomp.memory.usage import gpu_names, process_memory

# Of a Transformer, whose gradients take long; batch normalization over a few examples makes any
# rounding large.
_CHECKED_EXAMPLES = 2


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parse(argv)
    model = (QUICK if arguments.quick else FULL)[arguments.model]
    examples = min(model.batch, _CHECKED_EXAMPLES if len(model.shape) == 2 else 256)
    x = _batch(model, examples)
    run = _Run(model, arguments.method)
    # First, since memory that gradients leave behind would hide as much of a step.
    peak = _peak(run.step, _batch(model, 1), _batch(model, model.batch))
    gradients = run.gradients(x)
    if arguments.method == PLAIN:
        np.savez(arguments.expected, *gradients)
        run = _Run(model, PLAIN)
        for _ in range(2):  # as in _peak: each step draws other masks
            run.step(_batch(model, 1))
        gradients = run.gradients(x)
    error = _error(arguments.expected, gradients)
    parameters = sum(int(np.prod(v.shape)) for v in run.variables)
    print(json.dumps({"error": error, "peak": peak, "parameters": parameters}), flush=True)
    batch = _batch(model, model.batch)
    for line in sys.stdin:
        seconds = [_seconds(run.step, batch) for _ in range(json.loads(line))]
        print(json.dumps({"seconds": seconds}), flush=True)


class _Run:
    """The blocks of a model under a method, with weights and seeds that are always the same."""

    def __init__(self, model: Model, name: str) -> None:
        chosen = method(name)
        keras.utils.set_random_seed(1)
        with chosen.scope():
            self._blocks = model.blocks()
        calls = chosen.wrap(self._blocks)
        self.variables = [v for block in self._blocks for v in block.trainable_variables]
        signature = [tf.TensorSpec([None, *model.shape])]

        @tf.function(input_signature=signature, autograph=False, jit_compile=False)
        def gradients(x: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                y = x
                for call in calls:
                    y = call(y)
                loss = tf.reduce_mean(tf.square(tf.cast(y, tf.float32)))
            found: list[tf.Tensor] = tape.gradient(loss, [v.value for v in self.variables])
            return found

        @tf.function(input_signature=signature, autograph=False, jit_compile=False)
        def step(x: tf.Tensor) -> tf.Tensor:
            return tf.add_n([tf.reduce_sum(g) for g in gradients(x)])

        self.gradients = gradients
        self._step = step

    def step(self, x: tf.Tensor) -> float:
        """A forward and a backward pass, which has ended when it returns."""
        return float(self._step(x))


def _batch(model: Model, examples: int) -> tf.Tensor:
    random = np.random.default_rng(0)
    return tf.constant(random.standard_normal((examples, *model.shape), dtype=np.float32))


def _error(file: Path, found: Sequence[Any]) -> float:
    """The norm of all gradients' difference, relative to that of the expected ones in the file."""
    apart = size = 0.0
    with np.load(file) as expected:
        for name, gradient in zip(expected, found, strict=True):
            wanted = expected[name]
            apart += float(tf.norm(wanted - tf.cast(gradient, tf.float32))) ** 2
            size += float(tf.norm(wanted)) ** 2
    return float((apart / size) ** 0.5)


def _peak(step: Callable[[Any], float], one: Any, batch: Any) -> int:
    """Bytes that a step takes above what there is before it, on the GPU if there is one."""
    step(one)
    garbage.collect()
    for name in gpu_names()[:1]:
        tf.config.experimental.reset_memory_stats(name)
        before = tf.config.experimental.get_memory_info(name)["current"]
        step(batch)
        return int(tf.config.experimental.get_memory_info(name)["peak"] - before)
    # What was freed counts as resident until it is given back, and would hide as much of the step.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    resident = process_memory().current
    step(batch)
    return process_memory().peak - resident


def _seconds(step: Callable[[Any], float], batch: Any) -> float:
    begun = time.perf_counter()
    step(batch)
    return time.perf_counter() - begun


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.activations.train", description=__doc__)
    parser.add_argument("--model", choices=list(FULL), default="transformer")
    parser.add_argument("--method", choices=METHODS, default=PLAIN)
    parser.add_argument("--quick", action="store_true", help="the small size")
    parser.add_argument(
        "--expected", type=Path, required=True, help="plain gradients; the plain method writes it"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
