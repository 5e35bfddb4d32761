"""What gradcomp.cuda and gradcomp._cuda cannot take is named, with the remedy."""

from __future__ import annotations

import ast
import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_gpu import DLPack, Heap, Interface, gpu, load
from kernel_cases import one_row

import gradcomp as gc
from gradcomp import cuda

__all__ = ["gpu"]

QUANTIZE = "quantize:bits=4"
NUMEL = 512


class Broken:
    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: Any) -> Any:
        raise BufferError("Can't export tensors that require gradient")


def transposed(heap: Heap) -> np.ndarray:
    return heap.empty((16, 32), np.float32).T


Make = Callable[[Heap], Any]
GRADIENTS: tuple[tuple[str, Make], ...] = (
    (r"gradients\[0\] is a list, not an array on a GPU: pass a CuPy", lambda h: [1.0]),
    (
        r"gradients\[0\], a numpy.ndarray, is in the host's memory: copy it",
        lambda h: np.zeros(NUMEL, np.float32),
    ),
    (r"emulated_gpu.Interface, is in the host", lambda h: Interface(np.zeros(NUMEL, np.float32))),
    (
        r"gradients\[0\] is on a device of DLPack's type 10",
        lambda h: DLPack(h.empty(NUMEL, np.float32), (10, 0)),
    ),
    (r"not exported by DLPack \(Can't export.*pass x.detach\(\)", lambda h: Broken()),
    (
        r"gradients\[0\] has dtype '<f8' .*not float32 or float16 or bfloat16",
        lambda h: Interface(h.empty(NUMEL, np.float64)),
    ),
    (r"gradients\[0\] has dtype float64", lambda h: DLPack(h.empty(NUMEL, np.float64))),
    (
        r"has dtype '<V2' \(bfloat16 is passed by DLPack\)",
        lambda h: Interface(h.empty(NUMEL, np.float16), typestr="<V2"),
    ),
    (r"strides \(1, 32\), in elements.*contiguous\(\)", lambda h: Interface(transposed(h))),
    (r"strides \(1, 32\), in elements", lambda h: DLPack(transposed(h))),
    (
        r"gradients\[0\] is not aligned to 4 bytes",
        lambda h: Interface(h.empty(4 * NUMEL, np.uint8, misalignment=2).view(np.float32)),
    ),
)


def encode(heap: Heap, **changes: Any) -> None:
    given = {
        "codec": QUANTIZE,
        "gradients": [Interface(heap.empty(NUMEL, np.float32))],
        "payload": Interface(heap.empty(NUMEL // 2 + 8, np.uint8)),
        "stream": 0,
    }
    cuda.encode(**(given | changes))


@pytest.mark.parametrize(("told", "make"), GRADIENTS)
def test_gradients(gpu: Heap, told: str, make: Make) -> None:
    with pytest.raises(gc.CodecError, match=told):
        encode(gpu, gradients=[make(gpu)])


def floats(heap: Heap, numel: int = NUMEL, **changes: Any) -> Interface:
    array = heap.empty(numel, np.float32)
    return Interface(array, **changes)


def read_only(heap: Heap, size: int, dtype: str = "u1") -> Interface:
    array = heap.empty(size, dtype)
    return Interface(array, data=(array.ctypes.data, True))


ARGUMENTS: tuple[tuple[str, Callable[[Heap], dict[str, Any]]], ...] = (
    (
        r"gradients is a Interface, not a list of arrays: pass \[x\]",
        lambda h: {"gradients": floats(h)},
    ),
    (r"'auto'.* no kernel of its own: pass a codec", lambda h: {"codec": "auto"}),
    (r"None has no kernel", lambda h: {"codec": None}),
    (
        r"residuals has 2 arrays, not one for each of the 1",
        lambda h: {"residuals": [floats(h)] * 2},
    ),
    (
        r"residuals\[0\] has 5 elements, not the 512 that gradients\[0\] has",
        lambda h: {"residuals": [floats(h, 5)]},
    ),
    (
        r"residuals\[0\] has dtype float16, not float32",
        lambda h: {"residuals": [Interface(h.empty(NUMEL, np.float16))]},
    ),
    (
        r"residuals\[0\] is read-only: pass an array that may be written",
        lambda h: {"residuals": [read_only(h, NUMEL, "f4")]},
    ),
    (r"new_residuals is given without residuals", lambda h: {"new_residuals": [floats(h)]}),
    (
        r"new_residuals\[0\] has 1 elements",
        lambda h: {"residuals": [floats(h)], "new_residuals": [floats(h, 1)]},
    ),
    (r"payload has dtype float32, not uint8", lambda h: {"payload": floats(h)}),
    (
        r"payload has 3 bytes, not the 264 that",
        lambda h: {"payload": Interface(h.empty(3, np.uint8))},
    ),
    (r"payload is read-only", lambda h: {"payload": read_only(h, 264)}),
    (r"payload is None.*pass an array of 264 bytes", lambda h: {"payload": None}),
    (r"rng has 3 numbers, not 4", lambda h: {"rng": (1, 2, 3)}),
    (r"rng has rank -1", lambda h: {"rng": (1, 2, -1, 0)}),
    (r"row 0", lambda h: {"segments": [[0, 0, NUMEL, 0, -1]]}),
    (r"row 1", lambda h: {"segments": [[0, 0, 256, 0, 0], [1, 0, 256, 0, 0]]}),
    (r"segments has shape \(1, 4\), not \(rows, 5\)", lambda h: {"segments": [[0, 0, NUMEL, 0]]}),
)


@pytest.mark.parametrize(("told", "change"), ARGUMENTS)
def test_arguments_of_encode(
    gpu: Heap, told: str, change: Callable[[Heap], dict[str, Any]]
) -> None:
    with pytest.raises(gc.CodecError, match=told):
        encode(gpu, **change(gpu))


def test_workspaces(gpu: Heap) -> None:
    topk = {"codec": "topk:density=0.1", "payload": None}
    size = gc.TopK(density=0.1).payload_size(NUMEL)
    topk["payload"] = Interface(gpu.empty(size, np.uint8))
    need = cuda.encode_workspace("topk:density=0.1", [NUMEL])
    with pytest.raises(gc.CodecError, match=rf"workspace is None.*pass an array of {need} bytes"):
        encode(gpu, **topk)
    with pytest.raises(gc.CodecError, match=rf"workspace has {need - 1} bytes: .* needs {need}"):
        encode(gpu, **topk, workspace=Interface(gpu.empty(need - 1, np.uint8)))
    with pytest.raises(gc.CodecError, match="workspace is not aligned to 16 bytes"):
        encode(gpu, **topk, workspace=Interface(gpu.empty(need, np.uint8, misalignment=8)))
    encode(gpu, **topk, workspace=Interface(gpu.empty(need, np.uint8)))


def test_decode(gpu: Heap) -> None:
    size = gc.Quantize(bits=4).payload_size(NUMEL)
    given: dict[str, Any] = {
        "codec": QUANTIZE,
        "payloads": Interface(gpu.put(np.zeros(2 * size, np.uint8))),
        "outputs": [floats(gpu)],
        "world": 2,
        "workspace": Interface(gpu.empty(16, np.uint8)),
        "stream": 0,
    }
    assert cuda.decode(**given).wait()
    for told, change in (
        (
            rf"payloads has {2 * size} bytes, not the {size} that 1 payloads of {size} bytes have",
            {"world": 1},
        ),
        ("world is 0, not at least 1", {"world": 0}),
        (r"outputs\[0\] is read-only", {"outputs": [read_only(gpu, NUMEL, "f4")]}),
        ("workspace has 15 bytes: this call needs 16", {"workspace": gpu.empty(15, np.uint8)}),
        (r"outputs\[0\], a numpy.ndarray, is in", {"outputs": [np.zeros(NUMEL, np.float32)]}),
    ):
        if isinstance(change.get("workspace"), np.ndarray):
            change = {"workspace": Interface(change["workspace"])}
        with pytest.raises(gc.CodecError, match=told):
            cuda.decode(**(given | change))


def test_codes(gpu: Heap) -> None:
    codes, packed = Interface(gpu.empty(20, np.uint8)), Interface(gpu.empty(3, np.uint8))
    given = {"codes": codes, "bits": 1, "packed": packed, "stream": 0}
    for told, change in (
        ("bits is 3, not 1, 2, 4 or 8", {"bits": 3}),
        ("packed has 3 bytes, not the 5 that 20 codes of 2 bits have", {"bits": 2}),
        ("codes has dtype float32, not uint8 or bool", {"codes": floats(gpu)}),
        ("packed is None.*pass an array of 3 bytes", {"packed": None}),
        ("packed is read-only", {"packed": read_only(gpu, 3)}),
        ("stream is None", {"stream": None}),
    ):
        with pytest.raises(gc.CodecError, match=told):
            cuda.pack_bits(**(given | change))
        if told not in ("packed is read-only", "packed is None.*pass an array of 3 bytes"):
            with pytest.raises(gc.CodecError, match=told):
                cuda.unpack_bits(**(given | change))
    with pytest.raises(gc.CodecError, match="codes is read-only"):
        cuda.unpack_bits(packed, 1, read_only(gpu, 20), stream=0)


def test_raw_pointers() -> None:
    """What the module itself refuses, which has pointers only."""
    native = load()
    codec = native.Codec("quantize", 4, 32)
    x, out = np.zeros(32, np.float32), np.zeros(20, np.uint8)
    tensor, payload = (x.ctypes.data, "float32", 32), (out.ctypes.data, 20)

    def run(**changes: Any) -> None:
        given = {
            "codec": codec,
            "gradients": [tensor],
            "residuals": None,
            "new_residuals": None,
            "segments": one_row(32),
            "rng": (0, 0, 0, 0),
            "payload": payload,
            "workspace": (0, 0),
            "device": 0,
            "stream": 0,
        }
        native.encode(**(given | changes))

    run()
    for told, change in (
        (r"gradients\[0\] is a null pointer", {"gradients": [(0, "float32", 32)]}),
        (r"gradients\[0\] has dtype int8", {"gradients": [(8, "int8", 32)]}),
        (r"gradients\[0\] has -1 elements", {"gradients": [(8, "float32", -1)]}),
        ("one of residuals and new_residuals is missing", {"residuals": [tensor[0]]}),
        ("residuals has 0 pointers, not 1", {"residuals": [], "new_residuals": []}),
        (
            r"new_residuals\[0\] is a null pointer",
            {"residuals": [tensor[0]], "new_residuals": [0]},
        ),
        ("payload has 19 bytes, not 20", {"payload": (payload[0], 19)}),
        ("payload is a null pointer", {"payload": (0, 20)}),
        ("row 1", {"segments": one_row(31)}),
    ):
        with pytest.raises(ValueError, match=told):
            run(**change)
    topk, table = native.Codec("topk", values="float32"), one_row(32, 4)
    size = native.payload_size(topk, table)
    with pytest.raises(ValueError, match="workspace has 0 bytes, fewer than"):
        run(codec=topk, segments=table, payload=(payload[0], size))
    with pytest.raises(RuntimeError, match="device 7: cudaErrorEmulated: no such device"):
        run(device=7)
    with pytest.raises(ValueError, match="bits"):
        native.Codec("quantize", 3, 32)
    for told, packed in (("packed has 2 bytes, not 3", (8, 2)), ("packed is a null", (0, 3))):
        with pytest.raises(ValueError, match=told):
            native.pack_bits(payload, 1, packed, 0, 0)
        with pytest.raises(ValueError, match=told):
            native.unpack_bits(packed, 1, payload, 0, 0)
    with pytest.raises(ValueError, match="there are -1 codes"):
        native.packed_size(-1, 1)
    with pytest.raises(ValueError, match="report is a null pointer"):
        native.read_report(0, 0, 0)
    with pytest.raises(ValueError, match="the capsule is named used, not dltensor"):
        native.read_dlpack(_capsule(b"used"))


def _capsule(name: bytes) -> Any:
    make = ctypes.pythonapi.PyCapsule_New  # keeps the name's address: `name` is a constant
    make.restype, make.argtypes = (
        ctypes.py_object,
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
    )
    return make(1, name, None)


def test_the_stub_says_what_the_module_has() -> None:
    native = load()
    stub = Path(gc.__file__).with_name("_cuda.pyi").read_text(encoding="utf-8")
    functions = [n for n in ast.parse(stub).body if isinstance(n, ast.FunctionDef)]
    classes = {"Codec", "REPORT_BYTES", "WORKSPACE_ALIGNMENT"}
    public = {name for name in vars(native) if not name.startswith("__")}
    assert {f.name for f in functions} | classes == public
    for function in functions:
        signature = getattr(native, function.name).__doc__.splitlines()[0]
        told = re.findall(r"(\w+): ", signature)
        assert [argument.arg for argument in function.args.args] == told
