"""Codecs without a kernel: two NumPy functions for a tensor; buckets and feedback follow."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradcomp import kernels, reference
from gradcomp.codecs.base import Codec
from gradcomp.codecs.float_mode import default_float_mode
from gradcomp.errors import CodecError
from gradcomp.reference import Floats, Payload, Stream


@dataclass(frozen=True)
class RandomBits:
    """Random bits for each element that is encoded; the same ones whenever asked for."""

    stream: Stream
    start: int
    count: int

    def bits(self) -> np.ndarray:
        """uint16 [n]."""
        return self.stream.bits(self.start, self.count)

    def uniform(self) -> Floats:
        """float32 [n] above 0 and below 1, each an odd multiple of 2⁻¹⁷."""
        return (self.bits() * np.float32(2) + np.float32(1)) * np.float32(2.0**-17)


@dataclass(frozen=True)
class ArrayCodec(Codec):
    """A codec in NumPy: `payload_size`, `encode_array` and `decode_array` are all that it needs.

    TensorFlow graphs run it through `tf.numpy_function`.
    """

    @abc.abstractmethod
    def encode_array(self, x: Floats, random: RandomBits) -> Payload:
        """Encodes a tensor, or a part of one that is sent by itself.

        Args:
          x: float32 [n].
          random: bits that depend on seed, step, tensor, rank and element, on nothing else.
        Returns:
          uint8 [payload_size(n)].
        """

    @abc.abstractmethod
    def decode_array(self, payload: Payload, numel: int) -> Floats:
        """float32 [numel] of uint8 [payload_size(numel)]; CodecError if no encoder writes it."""

    def encode_bucket(
        self,
        gradients: Sequence[Any],
        residuals: Sequence[Any] | None,
        segments: Any,
        rng: Sequence[Any],
    ) -> tuple[Any, list[Any] | None]:
        """As `Codec.encode_bucket`."""
        count = len(gradients)
        old = [] if residuals is None else list(residuals)

        def encode(segments: np.ndarray, *inputs: Any) -> list[Any]:
            rng, arrays = inputs[:4], inputs[4:]
            payload, new = reference.encode(
                _Segments(self), arrays[:count], arrays[count:] or None, segments, rng
            )
            return [payload, *(new or [])]

        inputs = [segments, *rng, *gradients, *old]
        payload, *new = _run(encode, inputs, self._encoded(segments, old))
        return payload, None if residuals is None else _store(old, new)

    def reduce_bucket(
        self,
        payloads: Any,
        world: int,
        residual: Any | None,
        segments: Any,
        rng: Sequence[Any],
        scale: Any,
    ) -> tuple[Any, Any | None]:
        """As `Codec.reduce_bucket`."""
        old = [] if residual is None else [residual]

        def reduce(
            payloads: Payload, scale: float, segments: np.ndarray, *inputs: Any
        ) -> list[Any]:
            residual = inputs[4] if old else None
            payload, new = reference.reduce(
                _Segments(self), payloads, world, residual, segments, inputs[:4], scale
            )
            return [payload] if new is None else [payload, new]

        inputs = [payloads, scale, segments, *rng, *old]
        payload, *new = _run(reduce, inputs, self._encoded(segments, old))
        return payload, None if residual is None else _store(old, new)[0]

    def decode_bucket(
        self,
        payloads: Any,
        world: int,
        segments: Any,
        scale: Any,
        shapes: Sequence[tuple[Any, ...]],
        dtypes: Sequence[str],
    ) -> tuple[list[Any], Any]:
        """As `Codec.decode_bucket`."""

        def decode(payloads: Payload, scale: float, segments: np.ndarray, *dims: int) -> list[Any]:
            left = iter(dims)
            values, finite = reference.decode(
                _Segments(self),
                payloads,
                world,
                segments,
                scale,
                [tuple(next(left) for _ in shape) for shape in shapes],
                dtypes,
            )
            return [*values, finite]

        dims = [dim for shape in shapes for dim in shape]
        static = [tuple(None if kernels.is_tensor(d) else d for d in shape) for shape in shapes]
        outputs = [*zip(dtypes, static, strict=True), ("bool", ())]
        *values, finite = _run(decode, [payloads, scale, segments, *dims], outputs)
        return values, finite

    def _encoded(self, segments: Any, residuals: list[Any]) -> list[tuple[str, Any]]:
        """(dtype, shape) of a payload and of the residuals that come with it."""
        size = None
        if not kernels.is_tensor(segments):
            size = sum(self.payload_size(int(length)) for length in segments[:, 2])
        return [("uint8", (size,)), *(("float32", tuple(r.shape)) for r in residuals)]


@dataclass(frozen=True)
class _Segments:
    """An array codec as the reference sees codecs; holds it to the sizes that it claims."""

    codec: ArrayCodec

    @property
    def cut(self) -> int:
        """Segments start at multiples of it."""
        return self.codec.cut

    def size(self, length: int, kept: int) -> int:
        """Payload bytes of a segment."""
        return self.codec.payload_size(length)

    def encode(self, x: Floats, start: int, kept: int, random: Stream) -> Payload:
        """uint8 [size(n)] of float32 [n]."""
        payload = self.codec.encode_array(x, RandomBits(random, start, len(x)))
        return self._checked("encode_array", payload, "uint8", self.codec.payload_size(len(x)))

    def decode(self, payload: Payload, length: int, kept: int) -> Floats:
        """float32 [length]."""
        values = self.codec.decode_array(payload, length)
        return self._checked("decode_array", values, "float32", length)

    def _checked(self, method: str, array: np.ndarray, dtype: str, size: int) -> Any:
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != (size,):
            got = f"{getattr(array, 'dtype', type(array).__name__)} {list(np.shape(array))}"
            raise CodecError(
                f"{type(self.codec).__name__}.{method} returned {got} instead of {dtype} [{size}]"
            )
        return array


def _run(
    function: Callable[..., list[Any]], inputs: list[Any], outputs: list[tuple[str, Any]]
) -> list[Any]:
    """Calls a function of arrays, with tensors as an op where any input is a tensor.

    Args:
      function: takes as many arrays or scalars as there are inputs, returns a list of arrays.
      inputs: arrays, tensors or numbers.
      outputs: (dtype, shape) of each array that is returned.
    Raises:
      CodecError: the function raised it or another ValueError, at once, not in a graph that runs.
    """
    try:
        if not any(kernels.is_tensor(x) for x in inputs):
            return function(*inputs)
        import tensorflow as tf

        def call(*arrays: Any) -> list[Any]:
            with default_float_mode():
                return function(*arrays)

        # TensorFlow would take a Python int for an int32.
        inputs = [np.int64(x) if isinstance(x, int) else x for x in inputs]
        made = tf.numpy_function(call, inputs, [tf.as_dtype(dtype) for dtype, _ in outputs])
    except ValueError as error:
        raise CodecError(str(error)) from error
    tensors: list[Any] = tf.nest.flatten(made)  # of one output, some versions make no list
    for tensor, (_, shape) in zip(tensors, outputs, strict=True):
        tensor.set_shape(shape)
    return tensors


def _store(old: list[Any], new: list[Any]) -> list[Any]:
    """New residuals: tensors as they are, arrays copied over the old ones."""
    if any(kernels.is_tensor(r) for r in new):
        return new
    for residual, values in zip(old, new, strict=True):
        residual[...] = values
    return old
