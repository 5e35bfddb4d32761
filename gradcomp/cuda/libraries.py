"""The libraries whose arrays are given: their streams, and memory from them."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from gradcomp.errors import CodecError


class Library(Protocol):
    """What is asked of PyTorch or CuPy."""

    def current_stream(self, device: int) -> int:
        """The cudaStream_t that the library puts its own work on."""

    def empty(self, size: int, device: int, stream: int) -> Any:
        """uint8 [size], not reused before what `stream` holds by then is done."""


class _PyTorch:
    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def current_stream(self, device: int) -> int:
        return int(self._torch.cuda.current_stream(device).cuda_stream)

    def empty(self, size: int, device: int, stream: int) -> Any:
        torch = self._torch
        # Memory belongs to the stream that is current when it is allocated.
        current = self.current_stream(device) == stream
        on = None if current else torch.cuda.ExternalStream(stream, device=device)
        with torch.cuda.stream(on):
            return torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")


class _CuPy:
    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def current_stream(self, device: int) -> int:
        with self._cupy.cuda.Device(device):
            return int(self._cupy.cuda.get_current_stream().ptr)

    def empty(self, size: int, device: int, stream: int) -> Any:
        cupy = self._cupy
        with cupy.cuda.Device(device):
            if self.current_stream(device) == stream:
                return cupy.empty(size, cupy.uint8)
            with cupy.cuda.ExternalStream(stream, device):
                return cupy.empty(size, cupy.uint8)


def library_of(x: Any) -> Library | None:
    """PyTorch or CuPy, if `x` is theirs; imports neither."""
    torch: Any = sys.modules.get("torch")
    cupy: Any = sys.modules.get("cupy")
    if hasattr(torch, "Tensor") and isinstance(x, torch.Tensor):
        return _PyTorch(torch)
    if hasattr(cupy, "ndarray") and isinstance(x, cupy.ndarray):
        return _CuPy(cupy)
    return None


def handle_of(stream: Any, library: Library | None, device: int) -> int:
    """The cudaStream_t of `stream`, by default the library's current one.

    Args:
      stream: an integer, an object with `ptr` (CuPy), `cuda_stream` (PyTorch) or
        `__cuda_stream__()`, or None.
    Raises:
      CodecError: it is something else, or None with arrays of another library.
    """
    if stream is None:
        if library is None:
            raise CodecError(
                "stream is None, and the arrays are neither PyTorch's nor CuPy's, whose current "
                "stream it would be: pass the cudaStream_t, 0 for the default stream"
            )
        return library.current_stream(device)
    handle = stream
    if hasattr(stream, "__cuda_stream__"):
        handle = stream.__cuda_stream__()[1]
    elif hasattr(stream, "cuda_stream"):
        handle = stream.cuda_stream
    elif hasattr(stream, "ptr"):
        handle = stream.ptr
    if isinstance(handle, bool) or not isinstance(handle, int) or handle < 0:
        raise CodecError(
            f"stream is {stream!r}: pass a cudaStream_t as an integer, or an object with ptr, "
            "cuda_stream or __cuda_stream__"
        )
    # 1 is a name of the default stream, which libraries know as 0.
    return 0 if handle == 1 else handle


def empty(what: str, size: int, library: Library | None, device: int, stream: int) -> Any:
    """uint8 [size] from the library.

    Raises:
      CodecError: the arrays are of another library.
    """
    if library is None:
        raise CodecError(
            f"{what} is None, and the arrays are neither PyTorch's nor CuPy's, which would "
            f"allocate it: pass an array of {size} bytes of uint8"
        )
    return library.empty(size, device, stream)
