"""gradcomp._cuda built from the emulated kernels, and arrays that it takes for a GPU's."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import cuda_library
import numpy as np
import pytest

Array = np.ndarray[Any, Any]

NAME = "gradcomp._cuda"
_SIZES = (64 << 20, 1 << 16)
_DLPACK_CUDA = 2


@functools.cache
def load() -> ModuleType:
    """The module, whose memory of two devices is `_SIZES` bytes."""
    path = cuda_library.build_module()
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    library = ctypes.CDLL(str(path))
    for device, memory in enumerate(_memories()):
        address, size = ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(memory.size)
        library.emulated_memory(device, address, size)
    return module


@functools.cache
def _memories() -> list[Array]:
    return [np.empty(size, np.uint8) for size in _SIZES]


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(load().__file__))


@contextmanager
def devices(count: int) -> Iterator[None]:
    """So many devices instead of one."""
    _library().emulated_devices(count)
    try:
        yield
    finally:
        _library().emulated_devices(1)


def launched() -> tuple[int, int, int]:
    """Stream and device of the last launch or copy, and the device that is current now."""
    stream, device, current = ctypes.c_size_t(), ctypes.c_int(), ctypes.c_int()
    _library().emulated_launch(*(ctypes.byref(x) for x in (stream, device, current)))
    return stream.value, device.value, current.value


class Heap:
    """Memory of the devices, given out from the beginning, aligned to 256 bytes."""

    def __init__(self) -> None:
        self._used = [0, 0]

    def empty(self, shape: Any, dtype: Any, device: int = 0, misalignment: int = 0) -> Array:
        """Full of garbage."""
        memory, dtype = _memories()[device], np.dtype(dtype)
        begin = self._used[device] - (memory.ctypes.data + self._used[device]) % 256 + 256
        begin += misalignment
        end = begin + int(np.prod(shape)) * dtype.itemsize
        assert end <= memory.size, "the emulated device has no memory left"
        self._used[device] = end
        memory[begin:end] = 0xDB
        return memory[begin:end].view(dtype).reshape(shape)

    def put(self, array: Array, device: int = 0) -> Array:
        placed = self.empty(array.shape, array.dtype, device)
        placed[...] = array
        return placed


class Interface:
    """An array by `__cuda_array_interface__` alone."""

    def __init__(self, array: Array, **changes: Any) -> None:
        self.array = array
        made = dict(array.__array_interface__)
        self.__cuda_array_interface__ = {
            key: made[key] for key in ("shape", "typestr", "strides", "data")
        } | {"version": 3, **changes}


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


class DLPack:
    """An array by DLPack alone: NumPy's capsule, which says CUDA where it said CPU."""

    def __init__(self, array: Array, device: tuple[int, int] = (_DLPACK_CUDA, 0)) -> None:
        self.array = array
        self._device = device
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, *, stream: Any = None) -> Any:
        self.streams.append(stream)
        bfloat16 = self.array.dtype.name == "bfloat16"
        capsule = (self.array.view(np.uint16) if bfloat16 else self.array).__dlpack__()
        tensor = _tensor_of(capsule)
        tensor.device_type, tensor.device_id = self._device
        if bfloat16:
            tensor.code = 4
        return capsule


def _tensor_of(capsule: Any) -> _DLTensor:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return _DLTensor.from_address(get(capsule, b"dltensor"))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Heap:
    """The emulated module in place of the real one, and memory."""
    monkeypatch.setitem(sys.modules, NAME, load())
    return Heap()
