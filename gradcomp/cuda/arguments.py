"""What the operations take, checked: codecs, segment tables, lists of arrays, workspaces."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradcomp.codecs import Codec, KernelCodec
from gradcomp.codecs import codec as make_codec
from gradcomp.cuda.libraries import Library, empty
from gradcomp.cuda.views import View, check_numel, view
from gradcomp.errors import CodecError
from gradcomp.kernels import KernelParams

Table = NDArray[np.int64]


def kernel_codec(codec: Codec | str) -> KernelCodec:
    """The codec, if it has kernels.

    Raises:
      CodecError: it has none, such as Auto; names it.
    """
    made = make_codec(codec) if isinstance(codec, str) else codec
    if isinstance(made, KernelCodec):
        return made
    raise CodecError(
        f"{codec!r} has no kernel of its own: pass a codec that has, such as "
        "gradcomp.Quantize(bits=4) or 'topk:density=0.01'"
    )


def native_codec(native: ModuleType, codec: KernelCodec, feedback: bool) -> Any:
    """gradcomp._cuda.Codec of the kernel."""
    return _made(native, codec.kernel_params(feedback))


@functools.lru_cache(maxsize=256)
def _made(native: ModuleType, params: KernelParams) -> Any:
    return native.Codec(*params)


def table_of(codec: KernelCodec, numels: Sequence[int], segments: ArrayLike | None) -> Table:
    """The segment table, by default a row a tensor, whose random numbers are its index's."""
    if segments is None:
        rows = [(t, 0, n, codec.kept(n), t) for t, n in enumerate(numels)]
        return np.array(rows, np.int64).reshape(-1, 5)
    return np.ascontiguousarray(segments, np.int64)


def key_of(rng: Sequence[int]) -> tuple[int, ...]:
    """Raises CodecError unless there are four numbers."""
    key = tuple(map(int, rng))
    if len(key) != 4:
        raise CodecError(f"rng has {len(key)} numbers, not 4: seed, step, rank, phase")
    return key


def views_of(
    native: ModuleType,
    arrays: Sequence[Any],
    name: str,
    dtypes: Sequence[str],
    *,
    written: bool = False,
) -> list[View]:
    """A view of each array.

    Raises:
      CodecError: `arrays` is no list or tuple, or as `view`.
    """
    if not isinstance(arrays, list | tuple):
        raise CodecError(f"{name} is a {type(arrays).__name__}, not a list of arrays: pass [x]")
    return [view(native, x, f"{name}[{i}]", dtypes, written=written) for i, x in enumerate(arrays)]


def residuals_of(
    native: ModuleType,
    arrays: Sequence[Any],
    name: str,
    gradients: Sequence[View],
    *,
    written: bool,
) -> list[View]:
    """A view of each residual, which has its gradient's size."""
    views = views_of(native, arrays, name, ("float32",), written=written)
    if len(views) != len(gradients):
        raise CodecError(
            f"{name} has {len(views)} arrays, not one for each of the {len(gradients)} gradients"
        )
    for residual, gradient in zip(views, gradients, strict=True):
        check_numel(residual, gradient.numel, f"{gradient.name} has")
    return views


def workspace_of(
    native: ModuleType,
    workspace: Any,
    need: int,
    library: Library | None,
    device: int,
    stream: int,
) -> View:
    """The caller's workspace if it is large enough, or one of the library's."""
    if workspace is None:
        if need == 0:
            return View("workspace", 0, "uint8", 0, None, None)
        workspace = empty("workspace", need, library, device, stream)
    scratch = view(native, workspace, "workspace", ("uint8",), written=True)
    if scratch.numel < need:
        raise CodecError(f"workspace has {scratch.numel} bytes: this call needs {need}")
    if need and scratch.pointer % native.WORKSPACE_ALIGNMENT:
        raise CodecError(
            f"workspace is not aligned to {native.WORKSPACE_ALIGNMENT} bytes: pass an array of its "
            "own, or a part that starts at a multiple"
        )
    return scratch
