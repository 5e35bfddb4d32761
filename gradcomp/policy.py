"""Policies: which codec each variable's gradient gets, by rules on the variable's path."""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gradcomp.bucket import DEFAULT_BUCKET_BYTES, VariableSpec
from gradcomp.codecs.base import Codec, codec
from gradcomp.errors import CodecError
from gradcomp.plan import Plan, describe

_COMPRESSIBLE = ("float32", "float16", "bfloat16")
_FLOATING = (*_COMPRESSIBLE, "float64")

# Why a gradient has no codec.
DISABLED = "GRADCOMP_DISABLE is set"
NO_CODEC = "no codec was asked for"


@dataclass(frozen=True)
class Policy:
    """A default codec and exceptions to it.

    The first rule whose pattern is found in a variable's path decides, whatever the variable's
    size. Without a rule, biases and other variables of rank 0 or 1, those of fewer than
    `min_numel` elements and those of float64 stay dense; all others get `default`.

    Args:
      default: a codec, a spec such as "quantize:bits=4", or None for "leave alone".
      rules: pairs (regular expression, codec | spec | None), tried in order with `re.search`.
      min_numel: smallest number of elements that the default is applied to.

    Raises:
      CodecError: a codec or a pattern cannot be understood.

    Example:
      >>> Policy("topk:density=0.01", rules=[(r"embedding", "quantize:bits=8"), (r"head/", None)])
    """

    default: Codec | str | None = None
    rules: Sequence[tuple[str, Codec | str | None]] = field(default=())
    min_numel: int = 1024

    def __post_init__(self) -> None:
        object.__setattr__(self, "default", codec(self.default))
        rules = []
        for rule in self.rules:
            try:
                pattern, chosen = rule
                re.compile(pattern)
            except (TypeError, ValueError, re.error) as error:
                raise CodecError(
                    f"rule {rule!r} is not a pair (regular expression, codec): {error}"
                ) from None
            rules.append((pattern, codec(chosen)))
        object.__setattr__(self, "rules", tuple(rules))
        if isinstance(self.min_numel, bool) or not isinstance(self.min_numel, int):
            raise CodecError(f"min_numel must be an integer, got {self.min_numel!r}")

    def codec_for(self, path: str, shape: Sequence[int], dtype: str = "float32") -> Codec | None:
        """The codec of one variable; None leaves its gradient dense."""
        return self._choose(path, shape, dtype)[0]

    def _choose(self, path: str, shape: Sequence[int], dtype: str) -> tuple[Codec | None, str]:
        """The codec, and why there is none."""
        if disabled():
            return None, DISABLED
        if dtype not in _COMPRESSIBLE:
            return None, f"{dtype} is never compressed"
        for pattern, chosen in self.rules:
            if re.search(pattern, path):
                return codec(chosen), f"rule {pattern!r} says none"
        if self.default is None:
            return None, NO_CODEC
        if len(shape) <= 1:
            return None, "rank 0 or 1, like a bias"
        if math.prod(shape) < self.min_numel:
            return None, f"fewer elements than min_numel={self.min_numel}"
        return codec(self.default), ""

    def get_config(self) -> dict[str, Any]:
        """Plain values for JSON; `from_config` makes an equal policy of them."""
        return {
            "default": _spec(self.default),
            "rules": [[pattern, _spec(chosen)] for pattern, chosen in self.rules],
            "min_numel": self.min_numel,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Policy:
        return cls(**config)

    def plan(
        self,
        variables: Sequence[object],
        world_size: int = 2,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    ) -> Plan:
        """What would be sent for these variables; `print` it to see the table.

        Args:
          variables: Keras or TensorFlow variables, e.g. `model.trainable_variables`.
          world_size: ranks that exchange gradients.
          bucket_bytes: raw bytes after which a bucket is full.

        Raises:
          CodecError: a variable isn't of a floating type, or an argument is not positive.
        """
        for name, value in (("world_size", world_size), ("bucket_bytes", bucket_bytes)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise CodecError(f"{name} must be an integer of at least 1, got {value!r}")
        specs = []
        for i, (path, shape, dtype) in enumerate(describe(variables)):
            if dtype not in _FLOATING:
                raise CodecError(
                    f"variable {path} has dtype {dtype}; gradients are exchanged for "
                    f"{', '.join(_FLOATING)} only: leave it out of the trainable variables"
                )
            chosen, why = self._choose(path, shape, dtype)
            specs.append(VariableSpec(i, path, shape, dtype, chosen, why=why))
        return Plan(tuple(specs), world_size, bucket_bytes)


def _spec(chosen: Codec | str | None) -> str:
    return chosen.spec if isinstance(chosen, Codec) else "none"


def as_policy(compression: Policy | Codec | str | None) -> Policy:
    """A policy from whatever stands for one: a policy, a codec, a spec string or None."""
    return compression if isinstance(compression, Policy) else Policy(compression)


_said_disabled = False


def disabled() -> bool:
    """True where GRADCOMP_DISABLE=1 turns all compression off; warns the first time."""
    global _said_disabled
    off = os.environ.get("GRADCOMP_DISABLE", "0") not in ("", "0")
    if off and not _said_disabled:
        _said_disabled = True
        warnings.warn(
            "GRADCOMP_DISABLE is set: gradients are exchanged uncompressed; unset it to compress",
            stacklevel=3,
        )
    return off
