"""CPU time of the kernels that a rank runs in one step, on warm buffers and one thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from gradcomp.bucket import Bucket
from gradcomp.codecs.kernel import KernelCodec
from gradcomp.kernels import load_native
from gradcomp.plan import Plan

_ROUNDS = 5
_RNG = (0, 0, 0, 0)


def kernel_seconds(plan: Plan) -> float:
    """Of the first rank; uncompressed buckets need none of ours.

    Called on all ranks at once, each feels what the others do to the memory and the caches that
    they share, as in a step; time in which a rank has no core doesn't count.
    """
    return sum(_of_bucket(bucket, plan.world_size) for bucket in plan.buckets if bucket.codec)


def _of_bucket(bucket: Bucket, ranks: int) -> float:
    codec = bucket.codec
    if not isinstance(codec, KernelCodec):
        raise TypeError(f"{codec} has no native kernel that could be timed alone")
    native, rng = load_native(), np.random.default_rng(0)
    encoder = native.Codec(*codec.kernel_params(True))
    decoder = native.Codec(*codec.kernel_params(False))
    segments = np.ascontiguousarray(bucket.segments, np.int64)
    gradients = [rng.standard_normal(v.numel, np.float32) for v in bucket.variables]
    residuals = [np.zeros(v.numel, np.float32) for v in bucket.variables]
    outputs = [np.empty(v.numel, np.float32) for v in bucket.variables]
    payload = np.empty(bucket.payload_bytes, np.uint8)
    times = [_median(native.encode, encoder, gradients, residuals, segments, _RNG, payload)]
    if bucket.route == "two_phase":
        chunk = bucket.chunks[0]
        rows = np.ascontiguousarray(chunk.segments, np.int64)
        received = np.tile(payload[: chunk.payload_bytes], ranks)
        kept = np.zeros(chunk.numel, np.float32)
        part = np.empty(chunk.payload_bytes, np.uint8)
        one = 1.0 / ranks
        times += [
            _median(native.reduce, encoder, received, ranks, kept, rows, _RNG, one, part),
            _median(native.decode, decoder, payload, 1, segments, 1.0, outputs),
        ]
    else:
        everyones = np.tile(payload, ranks)
        times += [_median(native.decode, decoder, everyones, ranks, segments, 1 / ranks, outputs)]
    return sum(times)


def _median(kernel: Callable[..., Any], *arguments: Any) -> float:
    kernel(*arguments)  # touches the memory
    times = []
    for _ in range(_ROUNDS):
        begun = time.thread_time()
        kernel(*arguments)
        times.append(time.thread_time() - begun)
    return median(times)
