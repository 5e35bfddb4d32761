"""`Auto`: which codec, and by which route, is chosen from measurements where training begins."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NoReturn

import numpy as np

from gradcomp.codecs import checks
from gradcomp.codecs.base import Codec, codec
from gradcomp.codecs.spec import format_spec, split_outside
from gradcomp.errors import CodecError

_CANDIDATES = (
    "fp16",
    "fp8",
    "quantize:bits=8",
    "quantize:bits=4",
    "sign",
    "topk:density=0.01",
)
_MAX_ERROR = 0.15  # of the candidates above, where none was given
_BETWEEN = "|"
_PROBE = 4096  # elements


@dataclass(frozen=True)
class Auto(Codec):
    """Chooses for each bucket the codec and the route that take the least time, or none.

    An optimizer or a tape measures, when it is built, what an exchange between its ranks takes and
    how fast candidates encode and decode, and measures again while it trains. All ranks choose the
    same. The logger "gradcomp" is told on rank 0 what was chosen and why.

    Args:
      max_error: the largest relative error of a candidate that is allowed, see `relative_error`.
        None allows all that were given, and of the candidates by default those up to 0.15.
      candidates: codecs or specs to choose from, and gradients are left as they are where none of
        them wins. By default `FP16`, `FP8`, `Quantize` with 8 and 4 bits, `Sign`, and `TopK` with a
        density of 1 %.
      memory_limit: MiB, for `pack_model` only, which chooses codecs of activations by memory.

    Raises:
      CodecError: an option out of range, or no candidate is allowed.

    Example:
      >>> Auto(candidates=["quantize:bits=8", "topk:density=0.01"]).spec
      'auto:candidates=(quantize:bits=8|topk:density=0.01)'
    """

    max_error: float | None = None
    candidates: Sequence[Codec | str] | str = ()
    memory_limit: int | None = None

    name: ClassVar[str] = "auto"
    decides: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.max_error is not None:
            error = checks.real("max_error", self.max_error)
            if not error > 0 or not math.isfinite(error):
                raise CodecError(f"max_error must be a number above 0, got {self.max_error!r}")
            object.__setattr__(self, "max_error", error)
        if self.memory_limit is not None:
            checks.integer("memory_limit", self.memory_limit, least=1)
        given = self.candidates
        if isinstance(given, Codec):
            given = [given]
        listed = split_outside(given, _BETWEEN) if isinstance(given, str) and given else given
        if not isinstance(listed, Sequence):
            raise CodecError(f"candidates must be a list of codecs or specs, got {given!r}")
        made = tuple(_candidate(one) for one in listed)
        if len(set(made)) != len(made):
            raise CodecError(f"Auto is given a candidate twice: {', '.join(c.spec for c in made)}")
        object.__setattr__(self, "candidates", made)
        if not self.allowed:
            errors = ", ".join(f"{c.spec} {relative_error(c):.2g}" for c in self._considered)
            raise CodecError(
                f"max_error={self._bound:g} allows no candidate; their relative errors are "
                f"{errors}: give a larger max_error, or other candidates"
            )

    @property
    def _considered(self) -> tuple[Codec, ...]:
        if self.candidates:
            return tuple(c for c in self.candidates if isinstance(c, Codec))
        return tuple(c for c in map(codec, _CANDIDATES) if c is not None)

    @property
    def _bound(self) -> float:
        if self.max_error is not None:
            return self.max_error
        return math.inf if self.candidates else _MAX_ERROR

    @cached_property
    def allowed(self) -> tuple[Codec, ...]:
        """The candidates to choose from."""
        return tuple(c for c in self._considered if relative_error(c) <= self._bound)

    @property
    def cut(self) -> int:
        """Where all candidates may be cut, so that residuals outlive a change."""
        return math.lcm(*(c.cut for c in self.allowed))

    @property
    def lossless(self) -> bool:
        return all(c.lossless for c in self.allowed)

    @property
    def spec(self) -> str:
        options: dict[str, Any] = {}
        if self.max_error is not None:
            options["max_error"] = self.max_error
        if self.candidates:
            options["candidates"] = _BETWEEN.join(c.spec for c in self._considered)
        if self.memory_limit is not None:
            options["memory_limit"] = self.memory_limit
        return format_spec(self.name, options)

    def get_config(self) -> dict[str, Any]:
        specs = [c.spec for c in self._considered] if self.candidates else []
        return {
            "name": self.name,
            "max_error": self.max_error,
            "candidates": specs,
            "memory_limit": self.memory_limit,
        }

    def payload_size(self, numel: int) -> int:
        _refuse()

    def encode_bucket(self, *_: Any) -> NoReturn:
        _refuse()

    def reduce_bucket(self, *_: Any) -> NoReturn:
        _refuse()

    def decode_bucket(self, *_: Any) -> NoReturn:
        _refuse()


@functools.cache
def relative_error(chosen: Codec) -> float:
    """How far off a codec may decode an element, relative to its tensor's largest magnitude.

    It is the largest that the codec's `error_bound` allows for four tensors of 4,096 elements:
    equal ones, a single one, a ramp, and normal random numbers; to three digits. 0.0005 for `FP16`,
    0.004 for `BF16`, 0.008 for 8 bits, 0.063 for `FP8`, 0.14 for 4 bits (half of it where they are
    rounded to nearest, as with error feedback), and 1 for `Sign` and `TopK`: what top-k doesn't
    send is decoded as 0.
    """
    ramp = np.linspace(-1, 1, _PROBE, dtype=np.float32)
    single = np.zeros(_PROBE, np.float32)
    single[0] = 1
    normal = np.random.default_rng(0).standard_normal(_PROBE, np.float32)
    probes = [np.ones(_PROBE, np.float32), single, ramp, normal]
    worst = max(float(chosen.error_bound(x).max() / np.abs(x).max()) for x in probes)
    return float(f"{worst:.3g}")  # bounds have a share of later roundings in them


def _candidate(given: Any) -> Codec:
    made = Codec.from_config(given) if isinstance(given, Mapping) else codec(given)
    if made is None:
        raise CodecError(
            "Auto leaves gradients as they are wherever no candidate wins: leave 'none' out"
        )
    if isinstance(made, Auto):
        raise CodecError("Auto chooses among codecs, and another Auto is none")
    return made


def _refuse() -> NoReturn:
    raise CodecError(
        "Auto can't encode or decode: it stands for a codec that an optimizer or a tape chooses "
        "from measurements when it is built. Give it to gc.DistributedOptimizer, "
        "hvd.DistributedOptimizer, hvd.DistributedGradientTape or gc.CompressedAllReduce; here, "
        "name a codec, such as 'quantize:bits=8'"
    )
