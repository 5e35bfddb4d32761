"""How fast a codec's kernels are on this machine, measured in some hundredths of a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gradcomp.codecs.kernel import KernelCodec
from gradcomp.cost import KernelSpeed
from gradcomp.kernels import load_native

CALIBRATION_NUMEL = 1 << 21
_ROUNDS = 7
_RNG = (0, 0, 0, 0)
_MANY = 5  # payloads


def kernel_speed(codec: KernelCodec, numel: int = CALIBRATION_NUMEL) -> KernelSpeed:
    """Times the codec's kernels alone, in place, on warm buffers and all of gradcomp's threads.

    The best of some calls counts: what else the machine does can only lengthen them.

    Args:
      codec: one with native kernels.
      numel: normal random elements.
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
    encode = _best(native.encode, encoder, [gradient], [residual], segments, _RNG, payload)

    def decode(count: int) -> float:
        payloads = np.tile(payload, count)
        return _best(native.decode, decoder, payloads, count, segments, 1.0, [output])

    one, many = decode(1), decode(_MANY)
    # Noise must not make a part of what was measured negative.
    each = min(max(0.0, (many - one) / (_MANY - 1)), one)
    return KernelSpeed(encode / numel, each / numel, (one - each) / numel)


def _best(kernel: Callable[..., Any], *arguments: Any) -> float:
    return min(timed(kernel, *arguments, rounds=_ROUNDS))


def timed(kernel: Callable[..., Any], *arguments: Any, rounds: int) -> list[float]:
    """Seconds of each of `rounds` calls, after one that touches the memory."""
    kernel(*arguments)
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        kernel(*arguments)
        times.append(time.perf_counter() - begun)
    return times
