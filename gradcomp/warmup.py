"""Warm-up: milder codecs in the first epochs, while gradients still change fast."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from gradcomp.bucket import DEFAULT_BUCKET_BYTES
from gradcomp.codecs import Codec, Quantize, TopK, checks, codec
from gradcomp.codecs.spec import parse_spec
from gradcomp.errors import CodecError
from gradcomp.plan import Plan
from gradcomp.policy import Policy, as_policy

_AUTO, _NONE = "auto", "none"
_START_DENSITY, _START_BITS = 0.25, 8
_BITS = (8, 4, 2)


@dataclasses.dataclass(frozen=True)
class Warmup:
    """A codec or a policy that is reached over some epochs, one stage an epoch.

    `TopK` begins at a larger density, which falls geometrically; `Quantize` begins with more bits.
    It goes where a codec goes, in an optimizer or a tape. Keras's `fit` tells the epoch by itself,
    a loop of your own calls `gc.begin_epoch`. Stages share their residuals, so nothing is lost when
    one gives way to the next, and are compiled into one step.

    Args:
      codec: a codec, a spec or a `Policy`, in force after the warm-up. All codecs of a policy that
        `start` applies to warm up, those of its rules too; the others are used from the beginning.
      epochs: how many epochs it takes, each of them a branch of the compiled step.
      start: a density (a float) for every `TopK` below it; a number of bits (an integer) for every
        `Quantize` with fewer; "none", or None, for every codec to begin uncompressed; "auto" for a
        density of 0.25 and 8 bits.

    Raises:
      CodecError: an option out of range, or there is nothing that `start` applies to.

    Example:
      >>> Warmup("topk:density=0.001", epochs=4)  # 25 %, 6.3 %, 1.6 %, 0.4 %, and then 0.1 %

    Source: Deep Gradient Compression, arXiv:1712.01887, section 3.3.
    """

    codec: Policy | Codec | str
    epochs: int = 4
    start: float | str | None = _AUTO

    def __post_init__(self) -> None:
        final = self.codec if isinstance(self.codec, Policy) else codec(self.codec)
        object.__setattr__(self, "codec", final)
        object.__setattr__(self, "epochs", checks.integer("epochs", self.epochs, least=1))
        object.__setattr__(self, "start", _checked_start(self.start))
        policy = self.policy
        given = [policy.default, *(chosen for _, chosen in policy.rules)]
        codecs = [c for c in given if isinstance(c, Codec)]
        if not any(map(self.codecs, codecs)):
            auto = "an Auto has no stages, and " if any(c.decides for c in codecs) else ""
            raise CodecError(
                f"Warmup(start={self.start!r}) finds nothing to begin with in {final!r}: {auto}"
                "start is a density above that of a TopK, a number of bits above that of a "
                "Quantize, or 'none'; or leave Warmup out"
            )

    @property
    def policy(self) -> Policy:
        """The codec of each variable after the warm-up."""
        return as_policy(self.codec)

    def codecs(self, final: Codec | None) -> tuple[Codec | None, ...]:
        """The codecs of the first `epochs` epochs, before `final`; empty if it does not warm up."""
        epochs = range(self.epochs)
        if final is None or final.lossless or final.decides:
            return ()
        if isinstance(final, TopK):
            start = _START_DENSITY if self.start == _AUTO else self.start
            first = 1.0 if start == _NONE else start
            if not isinstance(first, float) or first <= final.density:
                return ()
            ratio = final.density / first
            # Three digits, which is what a reader of the plan wants to see.
            densities = [float(f"{first * ratio ** (e / self.epochs):.3g}") for e in epochs]
            ramp = [dataclasses.replace(final, density=min(d, 1.0)) for d in densities]
            return (None, *ramp[1:]) if start == _NONE else tuple(ramp)
        ladder: list[Codec | None] = [None, final] if self.start == _NONE else [final]
        if isinstance(final, Quantize):
            start = _START_BITS if self.start == _AUTO else self.start
            most = max(_BITS) if start == _NONE else start
            between = [b for b in _BITS if isinstance(most, int) and final.bits < b <= most]
            ladder[-1:-1] = [dataclasses.replace(final, bits=b) for b in between]
        if len(ladder) == 1:
            return ()
        return tuple(ladder[e * (len(ladder) - 1) // self.epochs] for e in epochs)

    def plan(
        self,
        variables: Sequence[object],
        world_size: int = 2,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    ) -> Plan:
        """What would be sent for these variables after the warm-up, and in each of its epochs.

        Args, Raises: as in `Policy.plan`.
        """
        plan = self.policy.plan(variables, world_size, bucket_bytes)
        return dataclasses.replace(
            plan,
            variables=tuple(
                dataclasses.replace(v, warmup=self.codecs(v.codec)) for v in plan.variables
            ),
        )

    def get_config(self) -> dict[str, Any]:
        """Plain values for JSON; `from_config` makes an equal warm-up of them."""
        final = self.codec
        plain = final.get_config() if isinstance(final, Policy) else codec(final).spec  # type: ignore[union-attr]
        return {"codec": plain, "epochs": self.epochs, "start": self.start}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Warmup:
        final = config["codec"]
        final = final if isinstance(final, str) else Policy.from_config(final)
        return cls(**{**config, "codec": final})


def _checked_start(start: Any) -> float | str:
    if start is None:
        return _NONE
    if isinstance(start, str):
        if start in (_AUTO, _NONE):
            return start
        raise CodecError(
            f"start must be a density, a number of bits, 'none' or 'auto', got {start!r}"
        )
    try:
        bits = checks.integer("start", start)
    except CodecError:
        density = checks.real("start", start)
        if not 0 < density <= 1:
            raise CodecError(
                f"start={density} is a density, which must be above 0 and at most 1; a number of "
                "bits is an integer"
            ) from None
        return density
    if bits not in _BITS:
        raise CodecError(
            f"start={bits} is a number of bits, of which there are 8, 4 and 2; a density is a "
            f"float, such as {_START_DENSITY}"
        )
    return bits


def schedule(compression: Policy | Warmup | Codec | str | None) -> Policy | Warmup:
    """A policy or a warm-up from whatever stands for one, such as "warmup:codec=(topk:...)".

    Raises:
      CodecError: a spec that cannot be understood.
    """
    if isinstance(compression, Warmup):
        return compression
    if isinstance(compression, str) and compression.strip().partition(":")[0].strip() == "warmup":
        _, options = parse_spec(compression)
        try:
            return Warmup(**options)
        except TypeError as error:
            raise CodecError(
                f"the spec {compression!r} must read like "
                f"'warmup:codec=(topk:density=0.001),epochs=4,start=0.25': {error}"
            ) from None
    return as_policy(compression)


def from_config(config: dict[str, Any]) -> Policy | Warmup:
    """The inverse of either's `get_config`."""
    return (Warmup if "codec" in config else Policy).from_config(config)
