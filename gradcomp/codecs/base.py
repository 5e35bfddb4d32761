"""What every codec is: an immutable value that says what it claims and turns tensors into bytes."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from gradcomp import kernels
from gradcomp.codecs import checks
from gradcomp.codecs.spec import format_spec, parse_spec
from gradcomp.errors import CodecError

_registry: dict[str, type[Codec]] = {}


@dataclasses.dataclass(frozen=True)
class Codec(abc.ABC):
    """Encodes float tensors as flat uint8 payloads of a size known from the shape alone.

    Subclasses are frozen dataclasses: they compare and hash by value, and are found by `name` in
    specs and configs from the moment they are defined. A codec with a native kernel derives from
    `KernelCodec`, one written in NumPy from `ArrayCodec`. `gradcomp.testing.check_codec` proves
    what a codec claims.

    Attributes:
      name: head of the spec, e.g. "quantize".
      routes: the ways in which its payloads may be exchanged: of "dense" (uncompressed),
        "all_gather" and "two_phase" (which encodes the sum once more).
      decides: whether it stands for codecs among which it decides later, and encodes nothing.
    """

    name: ClassVar[str]
    decides: ClassVar[bool] = False
    routes: ClassVar[tuple[str, ...]] = ("dense", "all_gather")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        name = cls.__dict__.get("name")
        if name is None:
            return
        known = _registry.get(name)
        if known and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise CodecError(f"a codec named {name!r} exists already: {known.__qualname__}")
        _registry[name] = cls

    # What it claims.

    @property
    def cut(self) -> int:
        """A tensor may be cut for two-phase at multiples of this many elements."""
        return 64

    @property
    def lossless(self) -> bool:
        """Whether every float32 comes back as it was."""
        return False

    def unbiased(self, feedback: bool = False) -> bool:
        """Whether the mean over seeds of what is decoded is what was encoded."""
        return self.lossless

    def error_bound(self, x: np.ndarray) -> np.ndarray:
        """float32 [n]: no element of `x`, finite float32 [n], is decoded further off than this."""
        return np.full(x.shape, 0 if self.lossless else np.inf, np.float32)

    # Its form as text and as a dict.

    @property
    def spec(self) -> str:
        """Its text form: the first option, and all others that are not at their defaults."""
        options = {
            field.name: value.spec if isinstance(value, Codec) else value
            for i, (field, value) in enumerate(self._fields())
            if i == 0 or value != field.default
        }
        return format_spec(self.name, options)

    def get_config(self) -> dict[str, Any]:
        """A dict that JSON can hold: "name" and every option."""
        options = {
            field.name: value.get_config() if isinstance(value, Codec) else value
            for field, value in self._fields()
        }
        return {"name": self.name, **options}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Codec:
        """The codec of such a dict.

        Raises:
          CodecError: an unknown name or option, another class's config, or a bad value.
        """
        options = dict(config)
        made = _make(
            options.pop("name", None),
            {k: Codec.from_config(v) if isinstance(v, Mapping) else v for k, v in options.items()},
        )
        if not isinstance(made, cls):
            raise CodecError(f"{made!r} is not a {cls.__name__}")
        return made

    def _fields(self) -> list[tuple[dataclasses.Field[Any], Any]]:
        return [(field, getattr(self, field.name)) for field in dataclasses.fields(self)]

    # One tensor.

    @abc.abstractmethod
    def payload_size(self, numel: int) -> int:
        """Bytes that stand for `numel` elements, exactly."""

    def payload_sizes(self, numels: Any) -> Any:
        """int64 [n]: `payload_size` of each of int64 [n], both tensors."""
        import tensorflow as tf

        def sizes(numels: np.ndarray) -> np.ndarray:
            return np.array([self.payload_size(int(numel)) for numel in numels], np.int64)

        return tf.ensure_shape(tf.numpy_function(sizes, [numels], tf.int64), numels.shape)

    def kept(self, numel: Any) -> Any:
        """How many of `numel` elements are sent, for codecs that select; 0 for all others.

        `numel` is an integer, or an int64 tensor whose elements are meant one by one.
        """
        return 0

    def encode(self, x: Any, *, seed: Any = 0, step: Any = 0) -> Any:
        """Encodes one tensor.

        Args:
          x: array, tensor or variable of any shape, float32, float16 or bfloat16; read flattened.
          seed, step: integers (or int64 scalar tensors); equal ones give equal bytes everywhere.
        Returns:
          uint8 [payload_size(n)], an array or a tensor as `x` is.
        Raises:
          CodecError: `x` is no such array or tensor, or its shape is not static.
        Error: `error_bound(x)`.
        """
        x = checks.floats(x)
        return self.encode_bucket([x], None, self._segments(kernels.numel(x)), _rng(seed, step))[0]

    def encode_with_feedback(
        self, x: Any, residual: Any, *, seed: Any = 0, step: Any = 0
    ) -> tuple[Any, Any]:
        """Encodes x + residual and returns what the payload drops as the new residual.

        Args:
          x: as for `encode`.
          residual: float32 of the shape of `x`. An array is updated in place; a tensor is not.
          seed, step: as for `encode`.
        Returns:
          (payload, new residual): x + residual = decode(payload) + new residual, within one
          rounding an element.
        Raises:
          CodecError: as for `encode`, or the residual does not fit.
        Source: error feedback, arXiv:1901.09847.
        """
        x = checks.floats(x)
        segments = self._segments(kernels.numel(x))
        fits = checks.dtype_name(residual) == "float32" and tuple(residual.shape) == tuple(x.shape)
        if not fits or kernels.is_tensor(x) != kernels.is_tensor(residual):
            raise CodecError(
                f"the residual must be float32 {list(x.shape)} and of the same kind as x, got "
                f"{type(residual).__name__} of {checks.dtype_name(residual)} "
                f"{list(getattr(residual, 'shape', []))}"
            )
        if kernels.is_tensor(x):
            payload, new = self.encode_bucket([x], [residual], segments, _rng(seed, step))
            assert new is not None
            return payload, new[0]
        if not residual.flags.writeable:
            raise CodecError("the residual is read-only, and it is updated in place: pass a copy")
        contiguous = np.asarray(residual, order="C")
        payload, _ = self.encode_bucket([x], [contiguous], segments, _rng(seed, step))
        if contiguous is not residual:
            residual[...] = contiguous
        return payload, residual

    def decode(self, payload: Any, numel: int) -> Any:
        """Decodes one tensor.

        Args:
          payload: uint8 [payload_size(numel)], array or tensor. Its bytes are not trusted.
          numel: number of elements that were encoded.
        Returns:
          float32 [numel], an array or a tensor as `payload` is.
        Raises:
          CodecError: the payload has another size, or bytes that no encoder writes.
        """
        numel = checks.integer("numel", numel, least=0)
        payload = checks.payload(payload, self.payload_size(numel))
        outputs, _ = self.decode_bucket(
            payload, 1, self._segments(numel), 1.0, [(numel,)], ["float32"]
        )
        return outputs[0]

    def _segments(self, numel: int) -> np.ndarray:
        return np.array([[0, 0, numel, self.kept(numel), 0]], np.int64)

    # A bucket of tensors. Segments are int64 [S, 5] rows (tensor, start, length, kept, stream), a
    # tensor where lengths are not static, as then are the dimensions in `shapes`; rng is (seed,
    # step, rank, phase).

    @abc.abstractmethod
    def encode_bucket(
        self,
        gradients: Sequence[Any],
        residuals: Sequence[Any] | None,
        segments: Any,
        rng: Sequence[Any],
    ) -> tuple[Any, list[Any] | None]:
        """(payload, new residuals) of gradient + residual; arrays are updated in place."""

    @abc.abstractmethod
    def reduce_bucket(
        self,
        payloads: Any,
        world: int,
        residual: Any | None,
        segments: Any,
        rng: Sequence[Any],
        scale: Any,
    ) -> tuple[Any, Any | None]:
        """Sums `world` payloads of a chunk, times `scale`, and encodes the sum with feedback."""

    @abc.abstractmethod
    def decode_bucket(
        self,
        payloads: Any,
        world: int,
        segments: Any,
        scale: Any,
        shapes: Sequence[tuple[Any, ...]],
        dtypes: Sequence[str],
    ) -> tuple[list[Any], Any]:
        """(outputs, whether all are finite): the sum of `world` payloads in rank order × scale."""


def _rng(seed: Any, step: Any) -> tuple[Any, Any, int, int]:
    return checks.word("seed", seed), checks.word("step", step), 0, 0


def codec(spec: str | Codec | None) -> Codec | None:
    """The codec that a spec stands for; a codec stands for itself, None and "none" for no codec.

    Raises:
      CodecError: `spec` cannot be understood; the message says which part.

    Example:
      >>> codec("topk:density=0.01,values=(quantize:bits=4)")
      TopK(density=0.01, values=Quantize(bits=4, block_size=256, stochastic=None), select='exact')
    """
    if spec is None or isinstance(spec, Codec):
        return spec
    if not isinstance(spec, str):
        raise CodecError(f"expected a codec or a spec such as 'quantize:bits=4', got {spec!r}")
    name, options = parse_spec(spec)
    return None if name == "none" and not options else _make(name, options)


def registered() -> dict[str, type[Codec]]:
    """All codecs that encode something, by name."""
    return {name: made for name, made in sorted(_registry.items()) if not made.decides}


def _make(name: Any, options: Mapping[str, Any]) -> Codec:
    """The registered codec `name` with these options."""
    if name not in _registry:
        raise CodecError(
            f"unknown codec {name!r}; there are {', '.join(sorted(_registry))} and none"
        )
    made = _registry[name]
    known_options = [field.name for field in dataclasses.fields(made) if field.init]
    for option in options:
        if option not in known_options:
            raise CodecError(
                f"{name} has no option {option!r}; it has {', '.join(known_options) or 'none'} "
                "(a nested spec with options stands in parentheses)"
            )
    try:
        return made(**options)
    except TypeError as error:
        raise CodecError(f"{name}: {error}") from None
