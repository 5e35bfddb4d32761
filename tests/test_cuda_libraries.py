"""Streams and memory come from the library of the arrays: stand-ins for PyTorch and CuPy."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from emulated_gpu import DLPack, Heap, gpu, launched
from kernel_cases import assert_same, numbers

import gradcomp as gc
from gradcomp import cuda, kernels

__all__ = ["gpu"]

CURRENT = 21
SPEC = "topk:density=0.1,values=quantize:bits=8"


class Tensor(DLPack):
    """Of either stand-in."""


class Library:
    """What PyTorch and CuPy have in common: the stream that memory is allocated on."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self.stream = CURRENT
        self.allocated: list[tuple[int, int]] = []
        """(bytes, stream)"""

    @contextlib.contextmanager
    def on(self, stream: int) -> Iterator[None]:
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    def empty(self, size: int) -> Tensor:
        self.allocated.append((size, self.stream))
        return Tensor(self._heap.empty(size, np.uint8))


def pytorch(library: Library) -> SimpleNamespace:
    def current_stream(device: int) -> SimpleNamespace:
        assert device == 0
        return SimpleNamespace(cuda_stream=library.stream)

    def external(stream: int, *, device: int) -> Any:
        assert device == 0
        return library.on(stream)

    def empty(size: int, *, dtype: str, device: str) -> Tensor:
        assert (dtype, device) == ("torch.uint8", "cuda:0")
        return library.empty(size)

    return SimpleNamespace(
        Tensor=Tensor,
        uint8="torch.uint8",
        empty=empty,
        cuda=SimpleNamespace(
            current_stream=current_stream,
            ExternalStream=external,
            stream=lambda stream: stream or contextlib.nullcontext(),
        ),
    )


def cupy(library: Library) -> SimpleNamespace:
    def empty(size: int, dtype: str) -> Tensor:
        assert dtype == "cupy.uint8"
        return library.empty(size)

    def device(index: int) -> Any:
        assert index == 0
        return contextlib.nullcontext()

    def external(stream: int, device: int) -> Any:
        assert device == 0
        return library.on(stream)

    return SimpleNamespace(
        ndarray=Tensor,
        uint8="cupy.uint8",
        empty=empty,
        cuda=SimpleNamespace(
            get_current_stream=lambda: SimpleNamespace(ptr=library.stream),
            ExternalStream=external,
            Device=device,
        ),
    )


@pytest.mark.parametrize("name", ["torch", "cupy"])
@pytest.mark.parametrize("stream", [None, 33])
def test_memory_is_of_the_stream_that_uses_it(
    gpu: Heap, monkeypatch: pytest.MonkeyPatch, name: str, stream: int | None
) -> None:
    library = Library(gpu)
    for module in ("torch", "cupy"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, name, {"torch": pytorch, "cupy": cupy}[name](library))
    codec = gc.codec(SPEC)
    assert codec is not None
    x, old = numbers("normal", 1000), numbers("normal", 1000, 1)
    table = np.array([[0, 0, 1000, codec.kept(1000), 0]], np.int64)
    params = codec.kernel_params(True)  # type: ignore[attr-defined]
    want, left = kernels.encode(params, [x], [old.copy()], table, (0, 0, 0, 0))
    residual = Tensor(gpu.put(old))
    payload = cuda.encode(SPEC, [Tensor(gpu.put(x))], residuals=[residual], stream=stream)
    used = CURRENT if stream is None else stream
    assert launched() == (used, 0, 0)
    assert_same(payload.array, want, "payload")
    assert left is not None
    assert_same(residual.array, left[0], "residual")
    output = Tensor(gpu.empty(1000, np.float32))
    assert cuda.decode(SPEC, payload, [output], stream=stream).wait()
    assert_same(output.array, codec.decode(want, numel=1000), "output")
    sizes = [want.size, cuda.encode_workspace(SPEC, [1000]), cuda.decode_workspace(SPEC, [1000])]
    assert library.allocated == [(size, used) for size in sizes]
    assert library.stream == CURRENT
    library.allocated.clear()
    cuda.encode("fp16", [Tensor(gpu.put(x))])
    assert library.allocated == [(2000, CURRENT)]  # casts need no workspace
