"""The choice of `Auto`: how a bucket is exchanged in the least time, as a pure function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradcomp.bucket import Bucket
from gradcomp.cost import KernelSpeed, Link, bucket_cost

# A prediction is uncertain, and what it counts in full may overlap with backward, whose time
# kernels take: to encode has to promise a fifth less than float32 takes.
MARGIN = 0.8
# What was chosen is kept unless another promises a tenth less.
_STAY = 0.9
# Links differ where one's figure is twice the other's.
_CHANGE = 2.0


@dataclass(frozen=True)
class Choice:
    """How one bucket is exchanged.

    Attributes:
      number: of the alternative, 0 where nothing is encoded.
      seconds: predicted of every alternative.
    """

    number: int
    seconds: tuple[float, ...]

    @property
    def best(self) -> int:
        """The number of the alternative that encodes and takes the least time; 0 if none does."""
        return min(range(1, len(self.seconds)), key=self.seconds.__getitem__, default=0)


def predict(
    alternative: Bucket, ranks: int, link: Link, speeds: Mapping[str, KernelSpeed]
) -> float:
    """Seconds that one exchange of a bucket takes, on the link and in kernels.

    An encoded one is charged one small exchange more, for what the engine does for it: calls of
    operations, memory, and in which order they come.

    Args:
      speeds: by codec's spec.
    """
    raw, codec = alternative.raw_bytes, alternative.codec
    speed = None if codec is None else speeds[codec.spec]
    cost = bucket_cost(alternative.route, ranks, raw, alternative.payload_bytes, speed)
    extra = 0.0 if codec is None else (ranks - 1) * link.latency
    return cost.total(link) + extra


def choose(
    alternatives: Sequence[Bucket],
    ranks: int,
    link: Link,
    speeds: Mapping[str, KernelSpeed],
    before: int | None = None,
) -> Choice:
    """The alternative with the least predicted time, uncompressed unless another clearly wins.

    Args:
      alternatives: as `make_alternatives` lists them, uncompressed first.
      ranks: that exchange, at least 2.
      speeds: by codec's spec.
      before: what was chosen before, which is kept unless another is clearly faster.
    """
    seconds = tuple(predict(a, ranks, link, speeds) for a in alternatives)
    handicapped = [MARGIN * seconds[0], *seconds[1:]]
    number = min(range(len(seconds)), key=handicapped.__getitem__)
    if before is not None and handicapped[number] > _STAY * handicapped[before]:
        number = before
    return Choice(number, seconds)


def differs(before: Link, now: Link) -> bool:
    """Whether a link has changed so much that another choice may be better."""
    pairs = ((before.bandwidth, now.bandwidth), (before.latency, now.latency))
    return any(max(a, b) > _CHANGE * min(a, b) for a, b in pairs)


def explain(
    alternatives: Sequence[Sequence[Bucket]],
    choices: Sequence[Choice],
    ranks: int,
    link: Link,
    seconds: float,
) -> str:
    """One line: what was chosen for how many buckets, and why.

    Args:
      seconds: that it took to measure the link.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for place, (ways, choice) in enumerate(zip(alternatives, choices, strict=True)):
        kind = "" if choice.number else "none, since "
        name = _name(ways[choice.number or choice.best])
        groups.setdefault((kind, name), []).append(place)
    told = []
    for (kind, name), places in groups.items():
        taken = [choices[p].number or choices[p].best for p in places]
        theirs = sum(choices[p].seconds[n] for p, n in zip(places, taken, strict=True))
        dense = sum(choices[p].seconds[0] for p in places)
        buckets = f"{len(places)} bucket{'s' if len(places) > 1 else ''}"
        verb = "would take" if kind else "takes"
        told.append(
            f"{kind}{name} {verb} {1e3 * theirs:.3g} ms instead of {1e3 * dense:.3g} ({buckets})"
        )
    at = f"{link.bandwidth * 8e-9:.3g} Gbit/s and {1e6 * link.latency:.0f} us a message"
    measured = f"measured in {1e3 * seconds:.0f} ms"
    return f"auto chose among {ranks} ranks at {at}, {measured}: {'; '.join(told)}"


def _name(bucket: Bucket) -> str:
    if bucket.codec is None:
        return "none"  # there is no other
    return f"{bucket.codec.spec} by {bucket.route.replace('_', '-')}"
