"""The native module refuses what does not fit, and names it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_cases import one_row

from gradcomp import _native

SIXTEEN = np.zeros(16, np.float32)
RNG = (0, 0, 0, 0)


def payload(size: int) -> np.ndarray[Any, Any]:
    return np.zeros(size, np.uint8)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("float8",), "family is 'float8', not 'float32', .*'sign' or 'topk'$"),
        (("float16", 8), "bits is 8, but nothing is quantized"),
        (("float16", 0, 32), "block_size is 32, but"),
        (("float16", 0, 0, True), "stochastic is true, but"),
        (("float16", 0, 0, False, "float16"), "values is 'float16', but only 'topk'"),
        (("quantize", 3, 32), "bits is 3, not 8, 4 or 2"),
        (("quantize", 2**40, 32), "bits is 1099511627776"),
        (("quantize", 8, 33), "block_size is 33"),
        (("quantize", 8, 0), "block_size is 0"),
        (("quantize", 8, -32), "block_size is -32"),
        (("quantize", 8, 2**41), "block_size is 2199023255552"),
        (("sign", 8, 32), "bits is 8, but nothing is quantized"),
        (("sign", 0, 0), "block_size is 0, not a positive multiple"),
        (("float8_e4m3", 0, 48), "block_size is 48, not"),
        (("float8_e5m2", 0, 32, True), "stochastic is true, but"),
        (("sign", 0, 32, False, "float16"), "values is 'float16', but only 'topk'"),
        (("topk", 0, 0, False, "sign"), "block_size is 0, not"),
        (("topk", 8, 32, False, "float8_e4m3"), "bits is 8, but nothing is quantized"),
        (("topk", 0, 0, False, ""), "values is '', not 'float32', .*'quantize' or 'sign'$"),
        (("topk", 0, 0, False, "topk"), "values is 'topk'"),
        (("topk", 8, 32, False, "float16"), "bits is 8, but nothing"),
        (("topk", 0, 32, False, "quantize"), "bits is 0, not 8, 4 or 2"),
    ],
)
def test_codecs_that_do_not_exist(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _native.Codec(*args)


QUANTIZE = _native.Codec("quantize", 4, 32)
SIGN = _native.Codec("sign", 0, 32)
FLOAT8 = _native.Codec("float8_e4m3", 0, 32)
TOPK = _native.Codec("topk", values="float32")
HUGE = 2**62


@pytest.mark.parametrize(
    ("codec", "rows", "row"),
    [
        (QUANTIZE, [[0, 0, 15, 0, 0]], 1),  # ends early
        (QUANTIZE, [[0, 0, 17, 0, 0]], 0),
        (QUANTIZE, [[0, 0, 16, 1, 0]], 0),  # kept, of a codec that keeps all
        (QUANTIZE, [[0, 0, 8, 0, 0], [0, 8, 8, 0, 0]], 1),  # within a block
        (QUANTIZE, [[1, 0, 16, 0, 0]], 0),
        (QUANTIZE, [[-1, 0, 16, 0, 0]], 0),
        (QUANTIZE, [[0, 0, 16, 0, 0], [1, 0, 0, 0, 0]], 1),
        (QUANTIZE, [[0, 0, 16, 0, 0], [0, 16, 0, 0, 0]], 1),
        (QUANTIZE, [[0, 0, 0, 0, 0], [0, 0, 16, 0, 0]], 1),
        (QUANTIZE, [[0, 32, 16, 0, 0]], 0),
        (QUANTIZE, [[0, 0, -1, 0, 0]], 0),
        (QUANTIZE, [[0, 0, HUGE, 0, 0]], 0),
        (QUANTIZE, [[0, HUGE, 16, 0, 0]], 0),
        (QUANTIZE, [[0, 0, 16, 0, -1]], 0),
        (QUANTIZE, [[0, 0, 16, 0, 2**32]], 0),
        (SIGN, [[0, 0, 8, 0, 0], [0, 8, 8, 0, 0]], 1),
        (FLOAT8, [[0, 0, 8, 0, 0], [0, 8, 8, 0, 0]], 1),
        (TOPK, [[0, 0, 16, 17, 0]], 0),
        (TOPK, [[0, 0, 16, -1, 0]], 0),
        (TOPK, [[0, 0, 2**32, 1, 0]], 0),
    ],
)
def test_tables_that_do_not_cover_the_tensors(codec: Any, rows: list[list[int]], row: int) -> None:
    table = np.array(rows, np.int64)
    with pytest.raises(ValueError, match=f"row {row} of segments"):
        _native.encode(codec, [SIXTEEN], None, table, RNG, payload(12))
    with pytest.raises(ValueError, match=f"row {row} of segments"):
        _native.decode(codec, payload(12), 1, table, 1.0, [np.zeros(16, np.float32)])


def test_a_run_of_a_table_reduces_wherever_it_begins() -> None:
    table = np.array([[3, 64, 40, 0, 0], [4, 0, 0, 0, 0], [5, 0, 32, 0, 0]], np.int64)
    size = _native.payload_size(QUANTIZE, table)
    _native.reduce(QUANTIZE, payload(2 * size), 2, None, table, RNG, 1.0, payload(size))
    _native.reduce(QUANTIZE, payload(0), 2, None, table[:0], RNG, 1.0, payload(0))
    with pytest.raises(ValueError, match="row 1 of segments"):
        _native.payload_size(QUANTIZE, table[::2].copy())


@pytest.mark.parametrize("size", [0, 11, 13, 24])
def test_payloads_of_the_wrong_size(size: int) -> None:
    table = one_row(16)
    out = np.zeros(16, np.float32)
    with pytest.raises(ValueError, match=f"payload is {size} bytes, .* make 12"):
        _native.encode(QUANTIZE, [SIXTEEN], None, table, RNG, payload(size))
    with pytest.raises(ValueError, match=f"payload is {size} bytes, .* make 12"):
        _native.decode(QUANTIZE, payload(size), 1, table, 1.0, [out])
    with pytest.raises(ValueError, match=f"payload is {2 * size + 1} bytes, .* make 24"):
        _native.reduce(QUANTIZE, payload(2 * size + 1), 2, None, table, RNG, 1.0, payload(12))
    with pytest.raises(ValueError, match=f"payload is {size} bytes, .* make 12"):
        _native.reduce(QUANTIZE, payload(24), 2, None, table, RNG, 1.0, payload(size))


@pytest.mark.parametrize("world", [0, -1, -(2**63)])
def test_a_world_of_nobody(world: int) -> None:
    with pytest.raises(ValueError, match=f"world is {world}"):
        _native.decode(QUANTIZE, payload(0), world, one_row(16), 1.0, [np.zeros(16, np.float32)])
    with pytest.raises(ValueError, match=f"world is {world}"):
        _native.reduce(QUANTIZE, payload(0), world, None, one_row(16), RNG, 1.0, payload(12))


def test_a_malformed_payload_names_its_segment() -> None:
    table = np.array([[0, 0, 16, 2, 0], [1, 0, 16, 2, 0]], np.int64)
    good = payload(_native.payload_size(TOPK, table))
    _native.encode(TOPK, [SIXTEEN, SIXTEEN], None, table, RNG, good)
    good[good.size // 2 :] = 0
    outputs = [np.zeros(16, np.float32) for _ in range(2)]
    with pytest.raises(ValueError, match="segment 1 is malformed"):
        _native.decode(TOPK, good, 1, table, 1.0, outputs)


def test_top_k_does_not_reduce() -> None:
    table = one_row(16, 2)
    size = _native.payload_size(TOPK, table)
    with pytest.raises(ValueError, match="does not have this operation"):
        _native.reduce(TOPK, payload(size), 1, None, table, RNG, 1.0, payload(size))


def test_arrays_of_the_wrong_kind() -> None:
    table = one_row(16)
    read_only = payload(12)
    read_only.flags.writeable = False
    strided = np.zeros(32, np.float32)[::2]
    swapped = SIXTEEN.astype(">f4")

    def encode(**changes: Any) -> None:
        arguments = {
            "codec": QUANTIZE,
            "gradients": [SIXTEEN],
            "residuals": None,
            "segments": table,
            "rng": RNG,
            "payload": payload(12),
        }
        _native.encode(**{**arguments, **changes})

    encode()
    for changes, message in [
        ({"gradients": [SIXTEEN.astype(np.int32)]}, r"gradients\[0\] has dtype int32"),
        ({"gradients": [swapped]}, r"gradients\[0\] has dtype >f4, not"),
        ({"gradients": [strided]}, r"gradients\[0\] is not C-contiguous"),
        ({"residuals": []}, "residuals has 0 arrays, not 1"),
        ({"residuals": [np.zeros(15, np.float32)]}, r"residuals\[0\] has 15 elements, not 16"),
        ({"residuals": [SIXTEEN.astype(np.float16)]}, r"residuals\[0\] has dtype float16"),
        ({"segments": table.astype(np.int32)}, "segments has dtype int32, not int64"),
        ({"segments": table[:, :4].copy()}, r"segments has shape \(1, 4\)"),
        ({"segments": np.zeros((2, 5), np.int64)[:, ::-1]}, "segments is not C-contiguous"),
        ({"payload": read_only}, "payload is read-only"),
        ({"payload": np.zeros(12, np.int8)}, "payload has dtype int8, not uint8"),
        ({"rng": (0, 0, -1, 0)}, "rng has rank -1"),
        ({"rng": (0, 0, 2**31, 0)}, "rng has rank 2147483648"),
        ({"rng": (0, 0, 0, 2)}, "rng has phase 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            encode(**changes)
    with pytest.raises(ValueError, match="rounds is 13"):
        _native.threefry4x32((0,) * 4, (0,) * 4, 13)
