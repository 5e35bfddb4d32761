"""Arrays on a GPU as pointers: DLPack, or `__cuda_array_interface__`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from gradcomp.errors import CodecError

FLOATS = ("float32", "float16", "bfloat16")

_DLPACK_CUDA = (2, 13)  # device memory, managed memory
_DLPACK_HOST = (1, 3)  # pageable, pinned
_TYPESTRS = {"<f4": "float32", "<f2": "float16", "|u1": "uint8", "|b1": "bool"}


@dataclass(frozen=True)
class View:
    """Where an array lies; `owner` keeps what was exported of it."""

    name: str
    pointer: int
    dtype: str
    numel: int
    device: int | None
    owner: Any

    @property
    def tensor(self) -> tuple[int, str, int]:
        return self.pointer, self.dtype, self.numel

    @property
    def memory(self) -> tuple[int, int]:
        """(pointer, bytes), of uint8."""
        return self.pointer, self.numel


def view(
    native: ModuleType, x: Any, name: str, dtypes: Sequence[str], *, written: bool = False
) -> View:
    """The memory of `x`, contiguous in C order, of one of the dtypes and on a GPU.

    Args:
      native: gradcomp._cuda.
      x: has DLPack's methods or `__cuda_array_interface__`.
      name: of the argument, for errors.
      written: refuses what is read-only, where the array says so.
    Raises:
      CodecError: `x` is something else; names it and the remedy.
    """
    if hasattr(x, "__dlpack_device__"):
        pointer, dtype, shape, strides, device, owner = _from_dlpack(native, x, name)
    elif hasattr(x, "__cuda_array_interface__"):
        interface = x.__cuda_array_interface__
        pointer, dtype, shape, strides = _from_interface(interface, name, written)
        device = native.pointer_device(pointer) if math.prod(shape) else None
        owner = x
    else:
        raise CodecError(
            f"{name} is a {_kind(x)}, not an array on a GPU: pass a CuPy array, a PyTorch tensor "
            "or anything with DLPack or __cuda_array_interface__"
        )
    if device == -1:
        raise _on_host(x, name)
    if dtype not in dtypes:
        raise CodecError(f"{name} has dtype {dtype}, not {' or '.join(dtypes)}: convert it")
    if not _is_contiguous(shape, strides):
        raise CodecError(
            f"{name} has shape {shape} and strides {strides}, in elements, so it is not contiguous "
            "in C order: pass x.contiguous() in PyTorch, cupy.ascontiguousarray(x) in CuPy"
        )
    return View(name, pointer, dtype, math.prod(shape), device, owner)


def one_device(views: Sequence[View]) -> int:
    """The device that all arrays are on; 0 if none of them has an element.

    Raises:
      CodecError: they are on several; names two.
    """
    placed = [v for v in views if v.device is not None]
    for v in placed:
        if v.device != placed[0].device:
            raise CodecError(
                f"{placed[0].name} is on device {placed[0].device}, and {v.name} on device "
                f"{v.device}: copy one of them, all arrays of a call are to be on one GPU"
            )
    device = placed[0].device if placed else 0
    assert device is not None
    return device


def check_numel(v: View, numel: int, whose: str) -> None:
    """Raises CodecError unless `v` has so many elements; `whose` says what they are for."""
    if v.numel != numel:
        unit = "bytes" if v.dtype == "uint8" else "elements"
        raise CodecError(f"{v.name} has {v.numel} {unit}, not the {numel} that {whose}")


_Layout = tuple[int, str, tuple[int, ...], tuple[int, ...] | None]


def _from_dlpack(
    native: ModuleType, x: Any, name: str
) -> tuple[int, str, tuple[int, ...], tuple[int, ...] | None, int | None, Any]:
    kind, device = (int(number) for number in x.__dlpack_device__())
    if kind in _DLPACK_HOST:
        raise _on_host(x, name)
    if kind not in _DLPACK_CUDA:
        raise CodecError(
            f"{name} is on a device of DLPack's type {kind}, not CUDA's {_DLPACK_CUDA}"
        )
    try:
        capsule = x.__dlpack__(stream=-1)  # the caller says by `stream` when the array is ready
        pointer, dtype, shape, strides = native.read_dlpack(capsule)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise CodecError(
            f"{name} is not exported by DLPack ({error}). Of a tensor that requires a gradient "
            "pass x.detach()"
        ) from error
    return pointer, dtype, shape, strides, device, capsule


def _from_interface(interface: dict[str, Any], name: str, written: bool) -> _Layout:
    pointer, read_only = interface["data"]
    shape = tuple(interface["shape"])
    typestr = interface["typestr"]
    dtype = _TYPESTRS.get(typestr, f"{typestr!r} (bfloat16 is passed by DLPack)")
    if written and read_only:
        raise CodecError(f"{name} is read-only: pass an array that may be written")
    strides = interface.get("strides")
    if strides is not None:
        size = int(typestr[2:])
        strides = tuple(stride / size if stride % size else stride // size for stride in strides)
    return int(pointer or 0), dtype, shape, strides


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    if strides is None or 0 in shape:
        return True
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _kind(x: Any) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}".removeprefix("builtins.")


def _on_host(x: Any, name: str) -> CodecError:
    return CodecError(
        f"{name}, a {_kind(x)}, is in the host's memory: copy it to the GPU, by x.cuda() in "
        "PyTorch, cupy.asarray(x) in CuPy; gradcomp.Codec.encode takes NumPy arrays as they are"
    )
