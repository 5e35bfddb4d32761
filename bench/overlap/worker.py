"""One rank: steps whose exchange may begin while backward runs, and the same behind a barrier.

As a program it takes one argument, JSON: the network's size, the codec and the rounds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

import gradcomp.horovod as hvd
from bench.overlap.timeline import BARRIER, OVERLAPPED
from bench.ranks import tell


@dataclass
class Stamps:
    """Times on this rank's clock: tensors, or numbers.

    Attributes:
      forward: the loss existed.
      ready: each layer's gradient existed, the last layer's first.
      reduced: each was reduced.
    """

    forward: Any = None
    ready: Any = None
    reduced: Any = None


def _stamp(tensor: tf.Tensor) -> tf.Tensor:
    """The time at which the tensor exists. Not stateful, or graphs would put stamps in an order."""
    one = tf.reshape(tensor, [-1])[0]
    return tf.numpy_function(lambda _: time.perf_counter(), [one], tf.float64, stateful=False)


class _StampedTape:
    """A gradient tape that notes when each gradient exists, and may wait for all of them."""

    def __init__(self, tape: tf.GradientTape, stamps: Stamps, barrier: bool) -> None:
        self._tape, self._stamps, self._barrier = tape, stamps, barrier

    def gradient(self, *arguments: Any) -> list[tf.Tensor]:
        gradients: list[tf.Tensor] = self._tape.gradient(*arguments)
        self._stamps.ready = [_stamp(g) for g in reversed(gradients)]
        if self._barrier:
            with tf.control_dependencies(gradients):
                gradients = [tf.identity(g) for g in gradients]
        return gradients


def _make_step(
    kernels: list[tf.Variable], x: tf.Variable, codec: str, barrier: bool
) -> Callable[[], tuple[list[tf.Tensor], Stamps]]:
    bucket = 4 * int(kernels[0].shape.num_elements())  # a layer each
    traced = Stamps()

    @tf.function(autograph=False)
    def step() -> Any:
        with tf.GradientTape() as tape:
            y = x.read_value()
            for kernel in kernels:
                y = tf.tanh(y @ kernel)
            loss = tf.reduce_mean(tf.square(y))
        stamped: Any = _StampedTape(tape, traced, barrier)
        distributed = hvd.DistributedGradientTape(stamped, compression=codec, bucket_bytes=bucket)
        reduced = distributed.gradient(loss, kernels)
        after = [_stamp(g) for g in reversed(reduced)]
        return reduced, _stamp(loss), traced.ready, after

    def run() -> tuple[list[tf.Tensor], Stamps]:
        reduced, forward, ready, after = step()
        return reduced, Stamps(float(forward), [float(t) for t in ready], [float(t) for t in after])

    return run


def compare(width: int, layers: int, batch: int, codec: str, rounds: int) -> dict[str, Any]:
    """Times of both kinds of steps, in turn, and one step of each told in full.

    Raises:
      AssertionError: the two kinds differ in a bit of a reduced gradient, or ranks do.
    """
    rng = np.random.default_rng(hvd.rank())
    shared = np.random.default_rng(0)
    x = tf.Variable(rng.standard_normal((batch, width), np.float32), trainable=False)
    values = [
        shared.standard_normal((width, width), np.float32) / np.float32(np.sqrt(width))
        for _ in range(layers)
    ]
    steps, firsts = {}, {}
    for kind in (OVERLAPPED, BARRIER):
        # Residuals are kept by variables: each kind has its own.
        kernels = [tf.Variable(value) for value in values]
        steps[kind] = _make_step(kernels, x, codec, kind == BARRIER)
        firsts[kind] = [g.numpy().tobytes() for g in steps[kind]()[0]]
    assert firsts[OVERLAPPED] == firsts[BARRIER], "a barrier changes the reduced gradients"
    everyones = hvd.allgather_object(firsts[OVERLAPPED])
    assert all(ones == everyones[0] for ones in everyones), "ranks have different gradients"

    mine: dict[str, list[tuple[float, Stamps]]] = {kind: [] for kind in steps}
    for _ in range(rounds):
        for kind, step in steps.items():
            hvd.allgather_object(0)
            begun = time.perf_counter()
            _, stamps = step()
            seconds = max(hvd.allgather_object(time.perf_counter() - begun))
            mine[kind].append((seconds, _relative(stamps, begun)))
    return {kind: _told(results) for kind, results in mine.items()}


def _relative(stamps: Stamps, begun: float) -> Stamps:
    return Stamps(
        stamps.forward - begun,
        [t - begun for t in stamps.ready],
        [t - begun for t in stamps.reduced],
    )


def _told(results: list[tuple[float, Stamps]]) -> dict[str, Any]:
    """All times, and the stamps of the step that took the median."""
    ordered = sorted(results, key=lambda result: result[0])
    seconds, stamps = ordered[len(ordered) // 2]
    return {"times": [r[0] for r in results], "step": {"seconds": seconds, **vars(stamps)}}


if __name__ == "__main__":
    hvd.init()
    found = compare(**json.loads(sys.argv[1]))
    if hvd.rank() == 0:
        tell(found)
    hvd.shutdown()
