"""The three operations on a bucket of NumPy arrays, by `gradcomp._native`."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradcomp.errors import CodecError, MissingDependencyError
from gradcomp.kernels.libraries import load_native
from gradcomp.reference import KernelParams

Array = NDArray[Any]


def encode(
    params: KernelParams,
    gradients: Sequence[ArrayLike],
    residuals: Sequence[Array] | None,
    segments: ArrayLike,
    rng: Sequence[Any],
) -> tuple[Array, list[Array] | None]:
    """`gradcomp.kernels.encode`; the residuals are updated in place."""
    codec, table = _codec(params), _table(segments)
    payload = np.empty(_call("payload_size", codec, table), np.uint8)
    arrays = [np.ascontiguousarray(g) for g in gradients]
    kept = None if residuals is None else list(residuals)
    _call("encode", codec, arrays, kept, table, tuple(map(int, rng)), payload)
    return payload, kept


def decode(
    params: KernelParams,
    payloads: ArrayLike,
    world: int,
    segments: ArrayLike,
    scale: float,
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[str],
) -> tuple[list[Array], bool]:
    """`gradcomp.kernels.decode`."""
    outputs = [np.empty(s, _dtype(d)) for s, d in zip(shapes, dtypes, strict=True)]
    wire = np.ascontiguousarray(payloads)
    finite = _call("decode", _codec(params), wire, world, _table(segments), float(scale), outputs)
    return outputs, finite


def reduce(
    params: KernelParams,
    payloads: ArrayLike,
    world: int,
    residual: Array | None,
    segments: ArrayLike,
    rng: Sequence[Any],
    scale: float,
) -> tuple[Array, Array | None]:
    """`gradcomp.kernels.reduce`; the residual is updated in place."""
    codec, table = _codec(params), _table(segments)
    payload = np.empty(_call("payload_size", codec, table), np.uint8)
    wire = np.ascontiguousarray(payloads)
    _call(
        "reduce", codec, wire, world, residual, table, tuple(map(int, rng)), float(scale), payload
    )
    return payload, residual


def _call(function: str, *args: Any) -> Any:
    try:
        return getattr(load_native(), function)(*args)
    except ValueError as error:
        raise CodecError(str(error)) from error


@functools.lru_cache(maxsize=256)
def _codec(params: KernelParams) -> Any:
    return _call("Codec", *params)


def _table(segments: ArrayLike) -> Array:
    return np.ascontiguousarray(segments, np.int64)


def _dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        try:
            import ml_dtypes
        except ImportError as error:
            raise MissingDependencyError(
                f"NumPy has no bfloat16 without ml_dtypes ({error}). Type: pip install ml_dtypes"
            ) from error
        return np.dtype(ml_dtypes.bfloat16)
    if name not in ("float32", "float16"):
        raise CodecError(f"cannot decode to {name}, only to float32, float16 and bfloat16")
    return np.dtype(name)
