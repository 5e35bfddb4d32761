"""The launchers of the CUDA kernels answer bad arguments with an error code."""

from __future__ import annotations

import re
from pathlib import Path

import cuda_library
import numpy as np
from kernel_cases import one_row

from gradcomp.reference import KernelParams

INVALID_VALUE = 1
SOURCES = Path(__file__).parents[1] / "csrc/cuda"


def test_launchers_refuse_what_they_cannot_do() -> None:
    x, payload = np.ones(64, np.float32), np.zeros(1000, np.uint8)
    large = KernelParams("quantize", 4, 1 << 20)
    rng = (0, 0, 0, 0)
    assert cuda_library.workspace_of_encode(large, [x], one_row(64)) == 4
    got = cuda_library.encode(large, [x], None, None, one_row(64), rng, payload, workspace_size=3)
    assert got == INVALID_VALUE
    for bad in (KernelParams("quantize", 3, 32), KernelParams("sign", 0, 33)):
        assert cuda_library.encode(bad, [x], None, None, one_row(64), rng, payload) == INVALID_VALUE
        assert cuda_library.decode(bad, payload, 1, one_row(64), 1.0, [x])[0] == INVALID_VALUE
    fp16 = KernelParams("float16")
    assert cuda_library.decode(fp16, payload, 0, one_row(64), 1.0, [x])[0] == INVALID_VALUE


def test_more_than_a_launch_can_do_is_refused() -> None:
    """Sizes of 64 bits: nothing of them is read."""
    x, tiles = np.zeros(4, np.uint8), 1 << 31
    codes = np.lib.stride_tricks.as_strided(x, (tiles * 8192,), (0,))
    assert cuda_library.pack_codes(codes, 1, x) == INVALID_VALUE
    assert cuda_library.unpack_codes(x, 1, codes) == INVALID_VALUE
    huge = np.lib.stride_tricks.as_strided(x.view(np.float32), (tiles * 2048,), (0,))
    assert cuda_library.encode(
        *(KernelParams("float16"), [huge], None, None, one_row(tiles * 2048), (0, 0, 0, 0), x)
    )


def test_launchers_neither_allocate_nor_wait() -> None:
    forbidden = r"cuda\w*(Malloc|Alloc|Synchronize|Query)|\bnew\b|std::vector|malloc\("
    for path in SOURCES.iterdir():
        code = re.sub(r"//[^\n]*", "", path.read_text())
        assert not re.search(forbidden, code), path.name
