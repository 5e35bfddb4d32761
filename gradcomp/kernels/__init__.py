"""The compiled kernels, for NumPy arrays or TensorFlow tensors, by what a call is given.

A bucket is a list of tensors of one codec. Its `segments`, int64 [S, 5], have rows (tensor, start,
length, kept, stream): a run of `length` elements of flat tensor number `tensor`, from `start`, of
which top-k keeps `kept` (0 for other families); `stream` tells the variables' random numbers apart.
Rows are in order and cover every tensor once; an empty tensor has one row of length 0. A payload is
its segments' payloads, one after the other, `payload_size(params, segments)` bytes.
`rng` is (seed, step, rank, phase): integers, or for tensors also scalar tensors. Where the number
of elements is known only when a graph runs, `segments` is an int64 tensor, and the dimensions in
`shapes` may be scalar tensors.

`gradcomp.reference` defines each kernel. NumPy's come from `gradcomp._native`, TensorFlow's from
`_ops.so`; each is loaded at the first call that needs it, and TensorFlow is not imported before.
Under XLA (`jit_compile=True`) the ops do not exist, and TensorFlow says so. The ops have no
gradient: asking for one is a CodecError, but a payload is integers, for which TensorFlow asks none
and gives None.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gradcomp.errors import CodecError
from gradcomp.kernels import numpy_kernels, tensorflow_kernels
from gradcomp.kernels.gpu import beside, gpu_is_loaded, on_host
from gradcomp.kernels.inputs import is_tensor, numel, static_shape
from gradcomp.kernels.libraries import import_tensorflow, load_native, load_ops
from gradcomp.kernels.threads import get_num_threads, set_num_threads
from gradcomp.reference import KernelParams, payload_size

__all__ = [
    "KernelParams",
    "beside",
    "decode",
    "encode",
    "get_num_threads",
    "gpu_is_loaded",
    "is_tensor",
    "load_native",
    "load_ops",
    "numel",
    "on_host",
    "payload_size",
    "reduce",
    "set_num_threads",
    "static_shape",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def encode(
    params: KernelParams,
    gradients: Sequence[Any],
    residuals: Sequence[Any] | None,
    segments: Any,
    rng: Sequence[Any],
) -> tuple[Any, list[Any] | None]:
    """Encodes a bucket; with residuals, encodes gradient + residual and keeps what that loses.

    Args:
      params: which kernel.
      gradients: float32, float16 or bfloat16, of any shapes.
      residuals: float32, one a gradient and of its size; None for no feedback. NumPy arrays are
        updated in place and must be contiguous; tensors are left as they are.
      segments: int64 [S, 5].
      rng: (seed, step, rank, phase).
    Returns:
      uint8 [payload_size(params, segments)], and the new residuals (None without feedback), in the
      gradients' shapes for tensors.
    Raises:
      CodecError: anything that does not fit; names it. In a `tf.function`, what is only known when
        it runs is tf.errors.InvalidArgumentError instead.
      MissingDependencyError: the compiled library or TensorFlow is missing.
    """
    tensors = any(map(is_tensor, (*gradients, *(residuals or ()))))
    function = _as_it_is(tensorflow_kernels.encode) if tensors else numpy_kernels.encode
    return function(params, gradients, residuals, segments, rng)


def decode(
    params: KernelParams,
    payloads: Any,
    world: int,
    segments: Any,
    scale: Any,
    shapes: Sequence[tuple[Any, ...]],
    dtypes: Sequence[str],
) -> tuple[list[Any], Any]:
    """Decodes `world` payloads, adds them up in rank order and multiplies by `scale`.

    Args:
      params: which kernel.
      payloads: uint8 [world * payload_size(params, segments)], any bytes.
      segments: int64 [S, 5].
      scale: float, or for tensors also a scalar tensor.
      shapes, dtypes: of the outputs; "float32", "float16" or "bfloat16".
    Returns:
      the outputs, and whether all their elements are finite (bool, or a bool tensor).
    Raises:
      CodecError: payloads of the wrong size, bytes that no encoder writes, and as `encode`.
      MissingDependencyError: as `encode`.
    """
    tensors = is_tensor(payloads)
    function = _as_it_is(tensorflow_kernels.decode) if tensors else numpy_kernels.decode
    return function(params, payloads, world, segments, scale, shapes, dtypes)


def reduce(
    params: KernelParams,
    payloads: Any,
    world: int,
    residual: Any | None,
    segments: Any,
    rng: Sequence[Any],
    scale: Any,
) -> tuple[Any, Any | None]:
    """The middle of a two-phase exchange: adds up a chunk's payloads and encodes the sum.

    Args:
      params: any but "topk".
      payloads: uint8 [world * payload_size(params, segments)], in rank order.
      residual: float32 [sum of lengths], the chunk's own; None for no feedback. As `encode`'s.
      segments: int64 [S, 5]: consecutive rows of a bucket's table.
      rng: (seed, step, rank, phase).
      scale: multiplies the sum before it is encoded.
    Returns:
      uint8 [payload_size(params, segments)], and the new residual.
    Raises:
      CodecError, MissingDependencyError: as `decode`.
    """
    if params.family == "topk":
        raise CodecError("topk has no reduce: sums of its payloads are not sparse enough to resend")
    tensors = is_tensor(payloads)
    function = _as_it_is(tensorflow_kernels.reduce) if tensors else numpy_kernels.reduce
    return function(params, payloads, world, residual, segments, rng, scale)


@functools.cache
def _as_it_is(function: _Function) -> _Function:
    """`function`, not rewritten by AutoGraph: it has no control flow that depends on tensors."""
    unconverted: _Function = import_tensorflow().autograph.experimental.do_not_convert(function)
    return unconverted
