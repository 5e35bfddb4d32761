"""What a user may pass: options, tensors, payloads; anything else is a CodecError that says so."""

import math
import numbers
import operator
from typing import Any

import numpy as np

from gradcomp import kernels
from gradcomp.errors import CodecError

FLOATS = ("float32", "float16", "bfloat16")


def integer(name: str, value: Any, *, least: int | None = None) -> int:
    """`value` as an int; NumPy's integers are taken, True and 4.0 are not."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise CodecError(f"{name} must be an integer, got {value!r}") from None
    if least is not None and number < least:
        raise CodecError(f"{name} must be at least {least}, got {number}")
    return number


def block_size(value: Any) -> int:
    """How many elements share a scale."""
    size = integer("block_size", value)
    if size < 32 or size % 32:
        raise CodecError(f"block_size must be a positive multiple of 32, got {size}")
    return size


def real(name: str, value: Any) -> float:
    """`value` as a float; NumPy's numbers are taken, True and NaN are not."""
    is_number = isinstance(value, numbers.Real | np.number) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise CodecError(f"{name} must be a finite number, got {value!r}")
    return float(value)


def word(name: str, value: Any) -> Any:
    """A seed or a step as a signed 64-bit integer, wrapped round; a scalar tensor as it is."""
    if kernels.is_tensor(value):
        return value
    return (integer(name, value) + 2**63) % 2**64 - 2**63


def dtype_name(x: Any) -> str:
    """The name of an array's or a tensor's dtype."""
    dtype = getattr(x, "dtype", None)
    return getattr(dtype, "name", None) or str(dtype)


def floats(x: Any) -> Any:
    """`x` if a kernel can read it: a tensor, or an array, made contiguous if it is not.

    Raises:
      CodecError: neither an array nor a tensor, or of another dtype than the three floats.
    """
    if not kernels.is_tensor(x) and not isinstance(x, np.ndarray | np.generic):
        raise CodecError(
            f"expected a NumPy array or a TensorFlow tensor, got {type(x).__name__}: "
            "convert it with np.asarray(x, np.float32)"
        )
    if dtype_name(x) not in FLOATS:
        raise CodecError(f"cannot encode {dtype_name(x)}: cast to float32 first")
    if kernels.is_tensor(x):
        return x
    return np.asarray(x, dtype=x.dtype.newbyteorder("="), order="C")


def payload(x: Any, size: int) -> Any:
    """`x` if it is uint8 [size], made contiguous if it is not.

    Raises:
      CodecError: anything else.
    """
    if not kernels.is_tensor(x) and not isinstance(x, np.ndarray):
        raise CodecError(
            f"expected a payload as a uint8 array or tensor, got {type(x).__name__}: "
            "np.frombuffer(data, np.uint8) makes one of bytes"
        )
    shape = [size] if _is_dynamic(x) else list(x.shape)
    if dtype_name(x) != "uint8" or shape != [size]:
        raise CodecError(
            f"expected a payload of uint8 [{size}], got {dtype_name(x)} {shape}: "
            "was it encoded by the same codec, from as many elements?"
        )
    return x if kernels.is_tensor(x) else np.ascontiguousarray(x)


def _is_dynamic(x: Any) -> bool:
    """Whether the shape of a tensor is known only when its graph runs."""
    return getattr(x.shape, "rank", 0) is None or None in tuple(x.shape)
