"""One rank of a comparison: verifies every method, then times them in turn.

As a program it takes one argument, JSON: the model, the methods' labels, and the rounds.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import horovod.tensorflow as horovod
import numpy as np
import tensorflow as tf

import gradcomp as gc
import gradcomp.horovod as hvd
from bench.allreduce.kernels import kernel_seconds
from bench.allreduce.link import goodput
from bench.allreduce.models import MODELS
from bench.allreduce.rows import METHODS, Method
from bench.ranks import has_a_host, interface_bytes, tell
from gradcomp.reducer import Reducer

_LATENCY = "latency"  # timed in turn with the methods: it drifts as they do
_TOLERANCE = 1e-5  # of the largest value: float32 sums, in another order
Step = Callable[[], list[tf.Tensor]]


def compare(model: str, labels: list[str], rounds: int) -> dict[str, Any]:
    """Every rank's result is the same.

    Raises:
      AssertionError: a method's ranks differ, or what it lost is not in the residuals.
    """
    rng = np.random.default_rng(hvd.rank())
    gradients = [
        tf.Variable(rng.standard_normal(shape, np.float32), trainable=False)
        for shape in MODELS[model]()
    ]
    rate = goodput(hvd.rank(), _gather)
    mean = [g.numpy() for g in _horovod(gradients, "mean", half=False)()]
    steps: dict[str, Step] = {}
    reducers: dict[str, Reducer] = {}
    for method in (m for m in METHODS if m.label in labels):
        if method.spec is None:
            steps[method.label] = _horovod(gradients, method.label, method.half)
            _demand_close(steps[method.label](), mean, 1e-2 if method.half else _TOLERANCE)
            continue
        state = hvd.FeedbackState()
        steps[method.label] = _ours(gradients, method, state)
        reduced = steps[method.label]()
        reducers[method.label] = state.reducer
        _demand_equal_ranks(reduced, method.label)
        _demand_close(_with_residuals(reduced, state.reducer), mean, _TOLERANCE)
    buckets = max((len(reducer.plan.buckets) for reducer in reducers.values()), default=1)
    steps[_LATENCY] = _tiny_gathers(buckets)
    times, sent = _time(steps, rounds)
    del sent[_LATENCY]
    latency = float(np.median(times.pop(_LATENCY))) / buckets / (hvd.size() - 1)
    kernels = {}
    for label, reducer in reducers.items():
        _gather(0)  # all begin at once
        kernels[label] = float(np.mean(_gather(kernel_seconds(reducer.plan))))
    return {
        "goodput": rate,
        "latency": latency,
        "times": times,
        "sent": sent,
        "planned": {label: reducer.plan.sent_bytes for label, reducer in reducers.items()},
        "kernels": kernels,
    }


def _tiny_gathers(count: int) -> Step:
    """As many collectives as a method has buckets, all under way at once as these are.

    Each takes N−1 messages, one after the other, which carry next to nothing.
    """
    tiny = tf.Variable([0.0], trainable=False)

    @tf.function(autograph=False)
    def step() -> list[tf.Tensor]:
        return [horovod.allgather(tiny.read_value(), name=f"{_LATENCY}.{i}") for i in range(count)]

    return step


def _horovod(gradients: list[tf.Variable], label: str, half: bool) -> Step:
    compression = horovod.Compression.fp16 if half else horovod.Compression.none
    name = label.replace(" ", "_")

    @tf.function(autograph=False)
    def step() -> list[tf.Tensor]:
        return [
            horovod.allreduce(g.read_value(), name=f"{name}.{i}", compression=compression)
            for i, g in enumerate(gradients)
        ]

    return step


def _ours(gradients: list[tf.Variable], method: Method, state: gc.FeedbackState) -> Step:
    policy = gc.Policy(method.spec)

    @tf.function(autograph=False)
    def step() -> list[tf.Tensor]:
        reduced: list[tf.Tensor] = gc.all_reduce(gradients, policy, state=state)
        return reduced

    return step


def _time(steps: dict[str, Step], rounds: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds of each round, the slowest rank's; bytes that a rank sends a step, their mean."""
    mine: dict[str, list[tuple[float, int]]] = {label: [] for label in steps}
    for number in range(rounds + 1):  # the first warms up
        for label, step in steps.items():
            _gather(0)
            bytes_before, begun = interface_bytes(), time.perf_counter()
            step()
            seconds = time.perf_counter() - begun
            _gather(0)  # the last bytes are sent
            if number:
                mine[label].append((seconds, interface_bytes() - bytes_before))
    everyones = _gather(mine)
    shared = not has_a_host()
    times = {
        label: [max(r[label][i][0] for r in everyones) for i in range(rounds)] for label in mine
    }
    sent = {}
    for label in mine:
        of_ranks = [float(np.median([b for _, b in r[label]])) for r in everyones]
        sent[label] = of_ranks[0] / hvd.size() if shared else float(np.mean(of_ranks))
    return times, sent


def _with_residuals(reduced: list[tf.Tensor], reducer: Reducer) -> list[np.ndarray]:
    """The first step's result and what it postponed: together the mean of what ranks brought."""
    total = [r.numpy().astype(np.float32).reshape(-1) for r in reduced]
    for index, residual in reducer.residuals.items():
        total[index] += horovod.allreduce(residual.read_value()).numpy().reshape(-1)
    for bucket in reducer.plan.buckets:
        if bucket.index not in reducer.chunk_residuals:
            continue
        kept = horovod.allgather(reducer.chunk_residuals[bucket.index].read_value()).numpy()
        low = 0
        for chunk in bucket.chunks:
            for tensor, start, length, *_ in chunk.segments:
                total[bucket.variables[tensor].index][start : start + length] += kept[
                    low : low + length
                ]
                low += length
    return [t.reshape(r.shape) for t, r in zip(total, reduced, strict=True)]


def _demand_close(found: Any, mean: list[np.ndarray], tolerance: float) -> None:
    for index, (f, m) in enumerate(zip(found, mean, strict=True)):
        off = float(np.abs(np.asarray(f) - m).max() / np.abs(m).max())
        assert off <= tolerance, f"tensor {index} is {off:.1e} from the mean, not {tolerance:.0e}"


def _demand_equal_ranks(tensors: list[tf.Tensor], label: str) -> None:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.numpy().tobytes())
    assert len(set(_gather(digest.hexdigest()))) == 1, f"{label}: ranks have different results"


def _gather(value: Any) -> list[Any]:
    everyones: list[Any] = hvd.allgather_object(value)
    return everyones


if __name__ == "__main__":
    hvd.init()
    found = compare(**json.loads(sys.argv[1]))
    if hvd.rank() == 0:
        tell(found)
    hvd.shutdown()
