"""How fast a codec's kernels are on this machine, measured in some hundredths of a second."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from gradcomp.codecs.base import Codec
from gradcomp.codecs.kernel import KernelCodec
from gradcomp.cost import KernelSpeed
from gradcomp.kernels import load_native

CALIBRATION_NUMEL = 1 << 21
_AUTO_NUMEL = 1 << 20  # float32 of 4 MiB: more than a core's own cache
_ROUNDS = 7
_RNG = (0, 0, 0, 0)
_MANY = 5  # payloads


Pick = Callable[[list[float]], float]


@functools.cache
def codec_speed(codec: Codec) -> KernelSpeed:
    """How fast the codec's kernels are while other processes do the same; measured once.

    The median of some calls counts, since ranks that share cores now share them in training too.

    Raises:
      MissingDependencyError: the native kernels are missing.
    """
    if isinstance(codec, KernelCodec):
        return kernel_speed(codec, _AUTO_NUMEL, median)
    return _array_speed(codec, _AUTO_NUMEL, median)


def kernel_speed(
    codec: KernelCodec, numel: int = CALIBRATION_NUMEL, pick: Pick = min
) -> KernelSpeed:
    """Times the codec's kernels alone, in place, on warm buffers and all of gradcomp's threads.

    Args:
      codec: one with native kernels.
      numel: normal random elements.
      pick: of the times of some calls the one that counts. By default the best: what else the
        machine does can only lengthen them.
    Raises:
      MissingDependencyError: the native kernels are missing.
    """
    native = load_native()
    encoder = native.Codec(*codec.kernel_params(True))
    decoder = native.Codec(*codec.kernel_params(False))
    segments = np.array([[0, 0, numel, codec.kept(numel), 0]], np.int64)
    gradient = np.random.default_rng(0).standard_normal(numel, np.float32)
    residual, output = np.zeros_like(gradient), np.zeros_like(gradient)
    payload = np.empty(codec.payload_size(numel), np.uint8)
    encode = _timed(pick, native.encode, encoder, [gradient], [residual], segments, _RNG, payload)

    def decode(count: int) -> float:
        payloads = np.tile(payload, count)
        return _timed(pick, native.decode, decoder, payloads, count, segments, 1.0, [output])

    return _speed(numel, encode, decode(1), decode(_MANY))


def _array_speed(codec: Codec, numel: int, pick: Pick) -> KernelSpeed:
    """The same of a codec that has no native kernel."""
    segments = np.array([[0, 0, numel, codec.kept(numel), 0]], np.int64)
    gradient = np.random.default_rng(0).standard_normal(numel, np.float32)
    residual = np.zeros_like(gradient)
    encode = _timed(pick, codec.encode_bucket, [gradient], [residual], segments, _RNG)
    payload, _ = codec.encode_bucket([gradient], [residual], segments, _RNG)

    def decode(count: int) -> float:
        payloads, like = np.tile(payload, count), ([(numel,)], ["float32"])
        return _timed(pick, codec.decode_bucket, payloads, count, segments, 1.0, *like)

    return _speed(numel, encode, decode(1), decode(_MANY))


def _speed(numel: int, encode: float, one: float, many: float) -> KernelSpeed:
    """Of seconds that it took to encode, and to decode one payload and many."""
    # Noise must not make a part of what was measured negative.
    each = min(max(0.0, (many - one) / (_MANY - 1)), one)
    return KernelSpeed(encode / numel, each / numel, (one - each) / numel)


def _timed(pick: Pick, kernel: Callable[..., Any], *arguments: Any) -> float:
    return pick(timed(kernel, *arguments, rounds=_ROUNDS))


def timed(kernel: Callable[..., Any], *arguments: Any, rounds: int) -> list[float]:
    """Seconds of each of `rounds` calls, after one that touches the memory."""
    kernel(*arguments)
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        kernel(*arguments)
        times.append(time.perf_counter() - begun)
    return times
