"""What a user has today: NumPy, TensorFlow and PyTorch, FBGEMM's quantisation through PyTorch.

Each is checked before it is timed. What isn't installed is said to be missing.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.kernels.cases import Array
from bench.kernels.measure import Case

_BLOCK = 256
_PYTORCH = "PyTorch (pip install -e '.[bench]')"
_TENSORFLOW = "TensorFlow (pip install -e '.[tensorflow]')"


def missing() -> list[str]:
    """What isn't installed, with the command."""
    names = {"torch": _PYTORCH, "tensorflow": _TENSORFLOW}
    return [text for name, text in names.items() if importlib.util.find_spec(name) is None]


def confine(cores: int) -> None:
    """Lets all threads of this process run on so many cores: thread pools have no other switch."""
    allowed = sorted(_ALL_CORES)[:cores]
    for thread in Path("/proc/self/task").iterdir():
        try:
            os.sched_setaffinity(int(thread.name), allowed)
        except ProcessLookupError:
            continue  # it ended meanwhile


_ALL_CORES = os.sched_getaffinity(0)


def alternatives(x: Array) -> list[Case]:
    """Cases on a float32 array whose size is a multiple of 256."""
    cases = list(_numpy(x))
    for name, make in (("torch", _torch), ("tensorflow", _tensorflow)):
        if importlib.util.find_spec(name) is not None:
            cases += make(x)
    return cases


def _kept(x: Array, density: float) -> int:
    return int(np.ceil(density * x.size))


def _check_selected(magnitudes: Array, x: Array, k: int, what: str) -> None:
    want = np.partition(np.abs(x), x.size - k)[x.size - k :]
    assert np.array_equal(np.sort(magnitudes), np.sort(want)), f"{what} does not select the largest"


def _check_close(decoded: Any, x: Array, steps: float, qmax: int, what: str) -> None:
    blocks = x.reshape(-1, _BLOCK)
    step = np.abs(blocks).max(axis=1, keepdims=True) / qmax
    error = np.abs(np.asarray(decoded).reshape(blocks.shape) - blocks)
    assert (error <= step * (steps + 1e-3)).all(), f"{what} is further off than its step"


def _numpy(x: Array) -> Iterator[Case]:
    k = _kept(x, 0.01)

    def select() -> Array:
        return np.argpartition(np.abs(x), x.size - k)[x.size - k :]

    _check_selected(np.abs(x[select()]), x, k, "np.argpartition")
    yield Case("np.argpartition 1 %", select)
    assert np.array_equal(np.unpackbits(np.packbits(x >= 0), count=x.size), x >= 0)
    yield Case("np.packbits(x >= 0)", lambda: np.packbits(x >= 0))
    yield Case("np float16 cast", lambda: x.astype(np.float16))


def _torch(x: Array) -> Iterator[Case]:
    import torch

    t = torch.from_numpy(x)
    rows = t.view(-1, _BLOCK)
    for density in (0.01, 0.001):
        k = _kept(x, density)

        def select(k: int = k) -> Any:
            return torch.topk(t.abs(), k)

        _check_selected(select()[0].numpy(), x, k, "torch.topk")
        yield Case(f"torch.topk {density:.1%}", select)

    def sampled(k: int = _kept(x, 0.01)) -> Any:
        magnitude = t.abs()
        sample = magnitude[torch.randint(x.size, (65536,))]
        threshold = torch.quantile(sample, 1 - 1.2 * k / x.size)
        index = torch.nonzero(magnitude > threshold).view(-1)
        best = torch.topk(magnitude[index], min(k, len(index)))[1]
        return t[index[best]]

    yield Case("torch sampled top-k 1 %", sampled)
    ops = torch.ops.quantized
    _check_close(
        ops.embedding_bag_byte_unpack(ops.embedding_bag_byte_prepack(rows)),
        *(x, 0.5, 127, "FBGEMM 8-bit"),
    )
    yield Case("FBGEMM row-wise 8-bit", lambda: ops.embedding_bag_byte_prepack(rows))
    yield Case("FBGEMM row-wise 4-bit", lambda: ops.embedding_bag_4bit_prepack(rows))

    def int8() -> Any:
        scale = rows.abs().amax(dim=1, keepdim=True) / 127
        return torch.round(rows / scale).clamp_(-127, 127).to(torch.int8), scale

    codes, scale = int8()
    _check_close(codes.float() * scale, x, 0.5, 127, "int8 composed in torch")
    yield Case("int8 composed in torch", int8)

    def int4() -> Any:
        scale = rows.abs().amax(dim=1, keepdim=True) / 7
        codes = torch.floor(rows / scale + torch.rand_like(rows)).clamp_(-7, 7).to(torch.int8)
        half = codes[:, : _BLOCK // 2], codes[:, _BLOCK // 2 :]
        return (half[0] & 15) | (half[1] << 4), scale

    yield Case("int4 stochastic composed in torch", int4)
    assert np.array_equal(t.half().numpy(), x.astype(np.float16))
    yield Case("torch float16 cast", lambda: t.half())


def _tensorflow(x: Array) -> Iterator[Case]:
    import tensorflow as tf

    with tf.device("CPU:0"):
        t = tf.constant(x)
    for density in (0.01, 0.001):
        k = _kept(x, density)

        def select(k: int = k) -> Any:
            return tf.math.top_k(tf.abs(t), k, sorted=False)

        _check_selected(select()[0].numpy(), x, k, "tf.math.top_k")
        yield Case(f"tf.math.top_k {density:.1%}", select)

    def compiled(function: Callable[[Any], Any]) -> Callable[[], Any]:
        graph = tf.function(function, autograph=False)
        return lambda: graph(t)  # an argument: a constant's result might be computed only once

    def blocks(t: Any, qmax: int) -> tuple[Any, Any]:
        rows = tf.reshape(t, [-1, _BLOCK])
        return rows, tf.reduce_max(tf.abs(rows), axis=1, keepdims=True) / qmax

    def int8(t: Any) -> Any:
        rows, scale = blocks(t, 127)
        return tf.cast(tf.round(rows / scale), tf.int8), scale

    codes, scale = int8(t)
    _check_close(tf.cast(codes, tf.float32) * scale, x, 0.5, 127, "int8 composed in TensorFlow")
    yield Case("int8 composed in TensorFlow", compiled(int8))

    def int4(t: Any) -> Any:
        rows, scale = blocks(t, 7)
        random = tf.random.stateless_uniform(tf.shape(rows), (1, 2))
        return tf.cast(tf.floor(rows / scale + random), tf.int8), scale

    codes, scale = int4(t)
    _check_close(tf.cast(codes, tf.float32) * scale, x, 1.0, 7, "QSGD composed in TensorFlow")
    yield Case("QSGD 4-bit composed in TensorFlow", compiled(int4))
    assert np.array_equal(tf.cast(t, tf.float16).numpy(), x.astype(np.float16))
    yield Case("tf.cast to float16", lambda: tf.cast(t, tf.float16))
