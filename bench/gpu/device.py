"""A GPU through PyTorch or CuPy: arrays there, copies, and times by CUDA events."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]

# Before each sample the GPU is kept busy for about 0.5 ms, so that what is timed has been queued by
# then and the time is the GPU's alone; these copies also replace what its cache holds.
_LEAD_BYTES = 2**29
_LEAD_COPIES = 2


class Unusable(Exception):
    """There is nothing to run on; the message says what to type."""


class Device(Protocol):
    """What the benchmark asks of a GPU."""

    name: str
    library: str
    dtypes: tuple[str, ...]
    """Those of gradients that the library has."""

    def put(self, array: Array) -> Any:
        """A copy of a NumPy array on the device."""

    def get(self, x: Any) -> Array:
        """A copy in the host's memory."""

    def empty(self, numel: int, dtype: str) -> Any:
        """A flat array on the device."""

    def copy(self, to: Any, source: Any) -> None:
        """Puts a copy within the device on the stream."""

    def seconds(self, run: Callable[[], object], samples: int) -> list[float]:
        """The time on the device of each of some calls."""


class PyTorch:
    """CUDA's current device through PyTorch."""

    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.name = torch.cuda.get_device_name()
        self.library = f"PyTorch {torch.__version__}"

    def put(self, array: Array) -> Any:
        torch = self.torch
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)
        return torch.from_numpy(array).cuda()

    def get(self, x: Any) -> Array:
        torch = self.torch
        if x.dtype == torch.bfloat16:
            return np.asarray(x.view(torch.int16).cpu().numpy())
        return np.asarray(x.cpu().numpy())

    def empty(self, numel: int, dtype: str) -> Any:
        return self.torch.empty(numel, dtype=getattr(self.torch, dtype), device="cuda")

    def copy(self, to: Any, source: Any) -> None:
        to.copy_(source)

    def seconds(self, run: Callable[[], object], samples: int) -> list[float]:
        cuda = self.torch.cuda
        pairs = []
        for _ in range(samples):
            lead(self, self._lead)
            begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            begin.record()
            run()
            end.record()
            pairs.append((begin, end))
        cuda.synchronize()
        return [1e-3 * begin.elapsed_time(end) for begin, end in pairs]

    @functools.cached_property
    def _lead(self) -> tuple[Any, Any]:
        return self.empty(_LEAD_BYTES, "uint8"), self.empty(_LEAD_BYTES, "uint8")


class CuPy:
    """CUDA's current device through CuPy."""

    dtypes: tuple[str, ...] = ("float32", "float16")

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self.name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
        self.library = f"CuPy {cupy.__version__}"

    def put(self, array: Array) -> Any:
        return self._cupy.asarray(array)

    def get(self, x: Any) -> Array:
        return np.asarray(self._cupy.asnumpy(x))

    def empty(self, numel: int, dtype: str) -> Any:
        return self._cupy.empty(numel, dtype)

    def copy(self, to: Any, source: Any) -> None:
        self._cupy.copyto(to, source)

    def seconds(self, run: Callable[[], object], samples: int) -> list[float]:
        cuda = self._cupy.cuda
        pairs = []
        for _ in range(samples):
            lead(self, self._lead)
            begin, end = cuda.Event(), cuda.Event()
            begin.record()
            run()
            end.record()
            pairs.append((begin, end))
        cuda.Device().synchronize()
        return [1e-3 * cuda.get_elapsed_time(begin, end) for begin, end in pairs]

    @functools.cached_property
    def _lead(self) -> tuple[Any, Any]:
        return self.empty(_LEAD_BYTES, "uint8"), self.empty(_LEAD_BYTES, "uint8")


def lead(device: Device, buffers: tuple[Any, Any]) -> None:
    """Keeps the device busy for a moment."""
    for _ in range(_LEAD_COPIES):
        device.copy(*buffers)


def open_device() -> Device:
    """The GPU, by PyTorch if it is installed and sees one, else by CuPy.

    Raises:
      Unusable: the extension, a GPU or a library is missing; says which, and what to type.
    """
    from gradcomp import cuda
    from gradcomp.errors import MissingDependencyError

    try:
        count, why = cuda.devices()
    except MissingDependencyError as error:
        raise Unusable(str(error)) from error
    if count == 0:
        raise Unusable(
            f"There is no GPU to run on: {why}. `nvidia-smi` has to list one and to say at least "
            f"CUDA {cuda.load().runtime_version() // 1000}.0, which is what its driver knows. "
            "A container is started with --gpus all."
        )
    reasons = []
    for name, make in (("torch", _torch_device), ("cupy", _cupy_device)):
        try:
            return make(importlib.import_module(name))
        except ImportError as error:
            reasons.append(f"{name} does not import ({error})")
        except Unusable as error:
            reasons.append(str(error))
    raise Unusable(f"{'; '.join(reasons)}. Type: pip install torch, or: pip install cupy-cuda13x")


def _torch_device(torch: Any) -> Device:
    if not torch.cuda.is_available():
        raise Unusable(f"PyTorch {torch.__version__} sees no GPU: it may be a build for CPUs")
    return PyTorch(torch)


def _cupy_device(cupy: Any) -> Device:
    try:
        return CuPy(cupy)
    except Exception as error:  # of classes that CuPy has only where CUDA is
        raise Unusable(f"CuPy {cupy.__version__} sees no GPU: {error}") from error
