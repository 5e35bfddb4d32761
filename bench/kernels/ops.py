"""TensorFlow's ops: what they add to their kernels, and what outputs of their own cost.

Run as a program it times the ops at one size and prints a line of JSON: `allocators` starts it with
the memory allocator set in one way or another.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import gradcomp as gc
from bench.demo.launch import ROOT
from bench.kernels import targets
from bench.kernels.cases import RNG, draw
from bench.kernels.measure import Case, interleave
from gradcomp import kernels
from gradcomp.codecs import KernelCodec

SPECS = (targets.INT8, targets.INT4, targets.TOPK.format(0.01), "fp16")
SMALL = 1024
AT_ONCE = 8

# Where TensorFlow has oneDNN on, its allocator keeps freed memory; where it has not, glibc's gives
# large tensors back to the system, and huge pages make asking for them again cheap.
_WITHOUT = {"TF_ENABLE_ONEDNN_OPTS": "0"}
KEEPING = "oneDNN on"
SETTINGS: dict[str, dict[str, str]] = {
    KEEPING: {"TF_ENABLE_ONEDNN_OPTS": "1"},
    "oneDNN off": _WITHOUT,
    "oneDNN off, huge pages": {**_WITHOUT, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
}


def op_of(spec: str, numel: int) -> Callable[[], Any]:
    """The op of encode + feedback, its inputs ready, into outputs that it allocates."""
    import tensorflow as tf

    with tf.device("CPU:0"):
        gradient = tf.constant(draw(numel))
        residual = tf.constant(draw(numel, 1) * np.float32(0.1))
        table, rng = tf.constant(_table(spec, numel)), tf.constant(RNG, tf.int64)
    encode = _encoder(spec)
    return lambda: encode([gradient], [residual], table, rng)


def _table(spec: str, numel: int) -> Any:
    codec = gc.codec(spec)
    assert isinstance(codec, KernelCodec)
    return np.array([[0, 0, numel, codec.kept(numel), 0]], np.int64)


def _encoder(spec: str) -> Callable[..., Any]:
    """Of gradients, residuals, segments and random bits: (payload, new residuals)."""
    codec = gc.codec(spec)
    assert isinstance(codec, KernelCodec)
    encode, options = kernels.load_ops().gradcomp_encode, codec.kernel_params(True)._asdict()
    return lambda g, r, table, rng: encode(
        gradients=g, residuals=r, segments=table, rng=rng, **options
    )


def overheads() -> dict[str, float]:
    """Seconds that an eager op takes beyond its kernel, of 1024 elements, by codec."""
    native = kernels.load_native()
    cases = []
    for spec in SPECS:
        codec = gc.codec(spec)
        assert isinstance(codec, KernelCodec)
        table = _table(spec, SMALL)
        kernel = native.Codec(*codec.kernel_params(True))
        x, left = draw(SMALL), draw(SMALL, 1)
        out = np.zeros(codec.payload_size(SMALL), np.uint8)

        def run(
            kernel: Any = kernel, x: Any = x, left: Any = left, table: Any = table, out: Any = out
        ) -> None:
            native.encode(kernel, [x], [left], table, RNG, out)

        cases += [Case(f"{spec} kernel", run), Case(f"{spec} op", op_of(spec, SMALL))]
    timings = interleave(cases, lambda: None, 25)
    return {
        spec: timings[f"{spec} op"].median_seconds - timings[f"{spec} kernel"].median_seconds
        for spec in SPECS
    }


def at_once(rounds: int, numel: int = 1 << 20) -> dict[str, float]:
    """By codec the CPU time of ops that may run at once, in multiples of one after the other.

    Threads that wait for each other, or that are in each other's way, make it longer.
    """
    ratios = {}
    for spec in SPECS:
        together, chained = _ops_of(spec, numel, False), _ops_of(spec, numel, True)
        pairs = [(_cpu(together), _cpu(chained)) for _ in range(rounds + 1)]
        ratios[spec] = statistics.median(a / b for a, b in pairs[1:])  # the first is traced
    return ratios


def _ops_of(spec: str, numel: int, chained: bool) -> Callable[[], Any]:
    """A graph of ops, of which each waits for the one before it if they are `chained`."""
    import tensorflow as tf

    encode = _encoder(spec)

    @tf.function(autograph=False)
    def graph(gradients: Any, residuals: Any, table: Any, rng: Any) -> Any:
        done: list[Any] = []
        for gradient, residual in zip(gradients, residuals, strict=True):
            with tf.control_dependencies(done[-1:] if chained else []):
                payload, (left,) = encode([gradient], [residual], table, rng)
            done += [left, payload]
        return done

    drawn = [tf.constant(draw(numel, seed)) for seed in range(2 * AT_ONCE)]
    table, rng = tf.constant(_table(spec, numel)), tf.constant(RNG, tf.int64)
    return lambda: graph(drawn[:AT_ONCE], drawn[AT_ONCE:], table, rng)


def _cpu(run: Callable[[], Any]) -> float:
    """Seconds of all threads."""
    begun = time.process_time()
    run()
    return time.process_time() - begun


def time_ops(numel: int, rounds: int) -> dict[str, dict[str, float]]:
    """Of each codec's op: multiples of `c = a + b` into a warm buffer, and page faults a call."""
    a, b = draw(numel), draw(numel, 1)
    c = np.zeros_like(a)
    cases = [Case(spec, op_of(spec, numel)) for spec in SPECS]
    cases.append(Case("c = a + b, fresh", lambda: np.add(a, b)))
    timings = interleave(cases, lambda: np.add(a, b, out=c), rounds)
    return {
        case.name: {
            "multiple": timings[case.name].multiple,
            "spread": timings[case.name].spread,
            "faults": _faults(case.run),
        }
        for case in cases
    }


def allocators(numel: int, rounds: int, threads: int) -> dict[str, dict[str, dict[str, float]]]:
    """`time_ops` in a process of its own under each of `SETTINGS`."""
    results = {}
    for name, setting in SETTINGS.items():
        command = [sys.executable, "-m", "bench.kernels.ops", *map(str, (numel, rounds, threads))]
        env = {**os.environ, **setting, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
        done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, check=True)
        results[name] = json.loads(done.stdout.splitlines()[-1])
    return results


def _faults(run: Callable[[], Any], calls: int = 5) -> float:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(calls):
        run()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / calls


def _main(numel: int, rounds: int, threads: int) -> None:
    gc.set_num_threads(threads)
    print(json.dumps(time_ops(numel, rounds)))


if __name__ == "__main__":
    _main(*map(int, sys.argv[1:]))
