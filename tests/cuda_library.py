"""The CUDA kernels built for the CPU (tests/cuda/emulation.h), on NumPy arrays."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from kernel_cases import DTYPES

from gradcomp import reference
from gradcomp.reference import KernelParams

Array = np.ndarray[Any, Any]

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build/emulated-cuda"

FAMILIES = (
    *("float32", "float16", "bfloat16", "float8_e4m3", "float8_e5m2"),
    *("quantize", "sign", "topk"),
)


def build() -> Path:
    """Builds what has changed; processes that run at once wait for each other."""
    _build("emulated_cuda")
    return BUILD / "tests/cuda/libemulated_cuda.so"


def build_ops() -> Path:
    """Builds the ops' GPU kernels on top of it, for the TensorFlow that is installed."""
    _build("emulated_gpu_ops")
    return BUILD / "tests/cuda/libemulated_gpu_ops.so"


def build_module() -> Path:
    """Builds gradcomp._cuda on the same kernels."""
    _build("_cuda")
    (path,) = (BUILD / "tests/cuda").glob("_cuda.*.so")
    return path


def _build(target: str) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cache = BUILD / "CMakeCache.txt"
        if not cache.exists() or sys.executable not in cache.read_text():
            options = ["-G", "Ninja", "-DGRADCOMP_EMULATED_CUDA=ON"]
            options += [f"-DPython_EXECUTABLE={sys.executable}"]
            _run("cmake", "-S", str(ROOT), "-B", str(BUILD), *options)
        jobs = str(os.cpu_count())
        _run("cmake", "--build", str(BUILD), "--target", target, "--parallel", jobs)


def _run(*command: str) -> None:
    # Under a sanitizer the tests run with its library loaded first, which is not for compilers.
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-4000:]}\n{done.stderr}"


@functools.cache
def library() -> ctypes.CDLL:
    """The library: the one that EMULATED_CUDA names, or built from this checkout."""
    loaded = ctypes.CDLL(os.environ.get("EMULATED_CUDA") or str(build()))
    loaded.emulated_launches.restype = ctypes.c_int64
    loaded.emulated_encode_workspace.restype = ctypes.c_int64
    loaded.emulated_decode_workspace.restype = ctypes.c_int64
    return loaded


class EncodeRow(NamedTuple):
    """Fields of csrc/cuda/rows.h, in the order of tests/cuda/exports.cc."""

    gradient: int
    residual: int
    new_residual: int
    dtype: int
    start: int
    length: int
    kept: int
    stream: int


class DecodeRow(NamedTuple):
    output: int
    dtype: int
    length: int
    kept: int


def _address(array: Array | None, start: int = 0) -> int:
    return 0 if array is None else array.ctypes.data + start * array.itemsize


def _codec(params: KernelParams) -> Array:
    values = FAMILIES.index(params.values or "float32")
    family = FAMILIES.index(params.family)
    return np.array([family, params.bits, params.block_size, params.stochastic, values], np.int64)


def _pointer(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def launches() -> int:
    """How many kernels have been launched."""
    return int(library().emulated_launches())


def set_seed(seed: int) -> None:
    """Draws another order of threads for what follows."""
    library().emulated_seed(ctypes.c_uint64(seed))


def workspace_of_encode(params: KernelParams, gradients: Sequence[Array], segments: Array) -> int:
    """cuda::EncodeWorkspace()."""
    codec, table = _codec(params), _encode_rows(gradients, None, None, segments)
    count = ctypes.c_int64(len(table))
    return int(library().emulated_encode_workspace(_pointer(codec), _pointer(table), count))


def _encode_rows(
    gradients: Sequence[Array],
    residuals: Sequence[Array] | None,
    new_residuals: Sequence[Array] | None,
    segments: Array,
) -> Array:
    rows = [
        EncodeRow(
            _address(gradients[tensor], start),
            _address(residuals[tensor] if residuals else None, start),
            _address(new_residuals[tensor] if new_residuals else None, start),
            DTYPES.index(gradients[tensor].dtype.name),
            *(start, length, kept, stream),
        )
        for tensor, start, length, kept, stream in segments.tolist()
    ]
    return np.array(rows, np.int64)


def encode(
    params: KernelParams,
    gradients: Sequence[Array],
    residuals: Sequence[Array] | None,
    new_residuals: Sequence[Array] | None,
    segments: Array,
    rng: Sequence[int],
    payload: Array,
    *,
    workspace_size: int | None = None,
    left: list[Array] | None = None,
) -> int:
    """cuda::Encode() into `new_residuals` and `payload`; its error, 0 for none.

    `workspace_size`: another than EncodeWorkspace() says. `left` gets what the workspace holds in
    the end.
    """
    codec = _codec(params)
    table = _encode_rows(gradients, residuals, new_residuals, segments)
    words = np.array(rng, np.uint64)
    count = ctypes.c_int64(len(table))
    if workspace_size is None:
        workspace_size = workspace_of_encode(params, gradients, segments)
    workspace = _workspace(workspace_size)
    error = library().emulated_encode(
        *(_pointer(codec), _pointer(table), count, _pointer(words), _pointer(payload)),
        *(_pointer(workspace.array), ctypes.c_int64(workspace_size)),
    )
    workspace.check()
    if left is not None:
        left.append(workspace.array)
    return int(error)


def decode(
    params: KernelParams,
    payloads: Array,
    world: int,
    segments: Array,
    scale: float,
    outputs: Sequence[Array],
) -> tuple[int, bool, int | None]:
    """cuda::Decode() into `outputs`: (error, all finite, the first bad row)."""
    rows = [
        DecodeRow(
            _address(outputs[tensor], start),
            DTYPES.index(outputs[tensor].dtype.name),
            *(length, kept),
        )
        for tensor, start, length, kept, _ in segments.tolist()
    ]
    codec, table = _codec(params), np.array(rows, np.int64)
    report = np.zeros(2, np.uint32)
    count = ctypes.c_int64(len(rows))
    stride = ctypes.c_int64(reference.payload_size(params, segments))
    size = library().emulated_decode_workspace(
        *(_pointer(codec), _pointer(table), count, ctypes.c_int64(world))
    )
    workspace = _workspace(size)
    error = library().emulated_decode(
        *(_pointer(codec), _pointer(payloads), stride, ctypes.c_int64(world)),
        *(_pointer(table), count, ctypes.c_float(scale), _pointer(report)),
        *(_pointer(workspace.array), ctypes.c_int64(size)),
    )
    workspace.check()
    bad_row = None if report[1] == 0xFFFFFFFF else int(report[1])
    return int(error), bool(report[0]), bad_row


def pack_codes(codes: Array, bits: int, packed: Array) -> int:
    """cuda::PackCodes() into `packed`; its error, 0 for none."""
    count = ctypes.c_int64(codes.size)
    return int(library().emulated_pack_codes(_pointer(codes), count, bits, _pointer(packed)))


def unpack_codes(packed: Array, bits: int, codes: Array) -> int:
    """cuda::UnpackCodes() into `codes`."""
    count = ctypes.c_int64(codes.size)
    return int(library().emulated_unpack_codes(_pointer(packed), count, bits, _pointer(codes)))


def draw_mask(
    key: int,
    counter: Sequence[int],
    fraction_bits: int,
    threshold: int,
    packed: Array,
    numel: int,
) -> int:
    """cuda::DrawMask() into `packed`; its error, 0 for none."""
    words = np.array([key, *counter], np.uint64)
    return int(
        library().emulated_draw_mask(
            *(_pointer(words[:1]), _pointer(words[1:]), fraction_bits),
            *(ctypes.c_uint32(threshold), ctypes.c_int64(numel), _pointer(packed)),
        )
    )


def apply_mask(x: Array, packed: Array, scale: float, y: Array) -> int:
    """cuda::ApplyMask() into `y`."""
    return int(
        library().emulated_apply_mask(
            *(DTYPES.index(x.dtype.name), _pointer(x), _pointer(packed)),
            *(ctypes.c_int64(x.size), ctypes.c_float(scale), _pointer(y)),
        )
    )


class _workspace:
    """Device memory of a size, aligned to 16 bytes, full of garbage, between guards."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._all = np.full(size + 144, 0xDB, np.uint8)
        begin = 64 + -(self._all.ctypes.data + 64) % 16
        self._begin = begin
        self.array: Array = self._all[begin : begin + size]
        if size == 0:
            self.array = self._all[begin:]

    def check(self) -> None:
        begin, end = self._begin, self._begin + self._size
        assert (self._all[:begin] == 0xDB).all() and (self._all[end:] == 0xDB).all(), (
            f"the kernels wrote past the ends of their workspace of {self._size} bytes"
        )
