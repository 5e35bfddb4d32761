"""The three operations on a bucket of TensorFlow tensors, by the ops in `_ops.so`.

The ops have no XLA kernel: `tf.function(jit_compile=True)` refuses them by name.
"""

import functools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcomp.errors import CodecError
from gradcomp.kernels.gpu import beside, on_host
from gradcomp.kernels.inputs import is_tensor, static_shape
from gradcomp.kernels.libraries import import_tensorflow, load_ops
from gradcomp.reference import KernelParams, check_params, payload_size

_FLOATS = ("float32", "float16", "bfloat16")


def encode(
    params: KernelParams,
    gradients: Sequence[Any],
    residuals: Sequence[Any] | None,
    segments: Any,
    rng: Sequence[Any],
) -> tuple[Any, list[Any] | None]:
    """`gradcomp.kernels.encode`; the new residuals are fresh tensors."""
    inputs = [_tensor(g, f"gradient {i}", *_FLOATS) for i, g in enumerate(gradients)]
    old = [_tensor(r, f"residual {i}", "float32") for i, r in enumerate(residuals or ())]
    load_ops()  # which tells whether there are GPU kernels
    table, words = _table(segments), _words(rng)
    with beside(inputs):
        payload, new = _call(
            "encode", params, gradients=inputs, residuals=old, segments=table, rng=words
        )
    if is_tensor(segments):
        for residual, gradient in zip(new, inputs, strict=False):
            residual.set_shape(gradient.shape)
    elif not _eager():
        payload.set_shape([payload_size(params, np.asarray(segments))])
        for i, (residual, gradient) in enumerate(zip(new, inputs, strict=False)):
            residual.set_shape(static_shape(gradient, f"gradient {i}"))
    return payload, None if residuals is None else list(new)


def decode(
    params: KernelParams,
    payloads: Any,
    world: int,
    segments: Any,
    scale: Any,
    shapes: Sequence[tuple[Any, ...]],
    dtypes: Sequence[str],
) -> tuple[list[Any], Any]:
    """`gradcomp.kernels.decode`."""
    for dtype in dtypes:
        if dtype not in _FLOATS:
            raise CodecError(f"cannot decode to {dtype}, only to {', '.join(_FLOATS)}")
    tensors, finite = _call(
        "decode",
        params,
        payloads=_tensor(payloads, "payloads", "uint8"),
        segments=_table(segments),
        scale=_scalar(scale),
        dims=_integers([dim for shape in shapes for dim in shape]),
        T=list(map(import_tensorflow().as_dtype, dtypes)),
        world=world,
        ranks=[len(shape) for shape in shapes],
    )
    if not _eager():
        for tensor, shape in zip(tensors, shapes, strict=True):
            tensor.set_shape([None if is_tensor(dim) else dim for dim in shape])
        finite.set_shape([])
    return list(tensors), finite


def reduce(
    params: KernelParams,
    payloads: Any,
    world: int,
    residual: Any | None,
    segments: Any,
    rng: Sequence[Any],
    scale: Any,
) -> tuple[Any, Any | None]:
    """`gradcomp.kernels.reduce`; the new residual is a fresh tensor."""
    old = [] if residual is None else [_tensor(residual, "residual", "float32")]
    payload, new = _call(
        "reduce",
        params,
        payloads=_tensor(payloads, "payloads", "uint8"),
        residual=old,
        segments=_table(segments),
        rng=_words(rng),
        scale=_scalar(scale),
        world=world,
    )
    if is_tensor(segments):
        for tensor, before in zip(new, old, strict=True):
            tensor.set_shape(before.shape)
    elif not _eager():
        payload.set_shape([payload_size(params, np.asarray(segments))])
        for tensor, before in zip(new, old, strict=True):
            tensor.set_shape(static_shape(before, "residual"))
    return payload, new[0] if new else None


def _call(op: str, params: KernelParams, **inputs: Any) -> Any:
    """Runs or builds an op; what its kernel refuses eagerly is a CodecError."""
    ops = load_ops()
    _check(params)
    try:
        return getattr(ops, f"gradcomp_{op}")(**inputs, **params._asdict())
    except import_tensorflow().errors.InvalidArgumentError as error:
        # TensorFlow puts names of its own before and after the kernel's message.
        message = re.sub(r"^\{\{.*?\}\} | \[Op:.*$", "", error.message, flags=re.DOTALL)
        raise CodecError(message) from error


@functools.lru_cache(maxsize=256)
def _check(params: KernelParams) -> None:
    try:
        check_params(params)
    except ValueError as error:
        raise CodecError(str(error)) from error


def _eager() -> bool:
    return bool(import_tensorflow().executing_eagerly())


def _tensor(x: Any, what: str, *dtypes: str) -> Any:
    try:
        tensor = import_tensorflow().convert_to_tensor(x)
    except (TypeError, ValueError) as error:
        raise CodecError(f"{what} is no tensor: {error}") from error
    if tensor.dtype.name not in dtypes:
        raise CodecError(f"{what} is {tensor.dtype.name}, not {' or '.join(dtypes)}")
    return tensor


# The ops are given tensors and dtypes of TensorFlow's own: with anything else, an eager call takes
# a path that is four to seven times as slow.


def _integers(values: Sequence[Any]) -> Any:
    """int64 [n] of integers and scalar tensors."""
    tf = import_tensorflow()
    with on_host():
        if any(map(is_tensor, values)):
            return tf.stack([tf.cast(value, tf.int64) for value in values])
        return tf.constant(values, tf.int64)


def _table(segments: Any) -> Any:
    if is_tensor(segments):
        return _tensor(segments, "segments", "int64")
    tf = import_tensorflow()
    with on_host():
        return tf.constant(segments, tf.int64)


def _scalar(scale: Any) -> Any:
    tf = import_tensorflow()
    with on_host():
        return tf.cast(scale, tf.float32) if is_tensor(scale) else tf.constant(scale, tf.float32)


def _words(rng: Sequence[Any]) -> Any:
    tf = import_tensorflow()
    with on_host():
        if any(map(is_tensor, rng)):
            words = [tf.cast(w if is_tensor(w) else _signed(w), tf.int64) for w in rng]
            return tf.stack(words)
        return tf.constant([_signed(word) for word in rng], tf.int64)


def _signed(word: int) -> int:
    """The int64 of the same 64 bits."""
    return (int(word) + 2**63) % 2**64 - 2**63
