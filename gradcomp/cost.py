"""What an exchange costs on paper: bytes, messages and kernels, by route; pure functions.

With N ranks, R raw bytes, P payload bytes and n elements of a bucket, all links full duplex and all
ranks sending at once:

dense       a ring: 2(N−1) messages one after the other, 2(N−1)/N·R bytes
all_gather  a ring: N−1 messages, (N−1)·P bytes; encodes n elements, decodes N payloads of n
two_phase   all-to-all and all-gather: 2(N−1) messages, 2(N−1)/N·P bytes; encodes n elements,
            decodes N payloads of n/N and encodes their sum, decodes n
"""

from __future__ import annotations

from dataclasses import dataclass

from gradcomp.bucket import sent_bytes

_FLOAT_BYTES = 4
ASSUMPTIONS = """\
* is the route that gradcomp takes: the one that sends the fewest bytes, bucket by bucket. Biases,
norms and small tensors stay float32 in every row. Assumed: any two ranks are joined by a link of
the given bandwidth each way, kept while all ranks send, and of the given latency; buckets of 25 MiB
follow one another; nothing overlaps, neither the link with kernels nor either with backward.
N ranks send R raw or P payload bytes of a bucket: dense in a ring of 2(N−1) messages, 2(N−1)/N·R
bytes; all-gather in a ring of N−1 messages, (N−1)·P bytes; two-phase in 2(N−1) messages,
2(N−1)/N·P bytes. Kernel time is measured when the command starts, on this machine, idle or not:
encode with error feedback, and decode, which an all-gather does for N payloads and two-phase for
two. The engine's own work counts nothing, nor do its sums of float32, or copies from a GPU.
auto is what gc.Auto() would choose on this link: the codec and route with the least predicted time,
where that is a fifth less than float32 takes.
Break-even is the bandwidth below which (<), or above which (>), a row takes less time than none."""


@dataclass(frozen=True)
class Link:
    """What joins the ranks.

    Attributes:
      bandwidth: bytes a second that a rank sends while all others do.
      latency: seconds from one rank's message to the next's.
    """

    bandwidth: float
    latency: float


@dataclass(frozen=True)
class KernelSpeed:
    """A codec's kernels, in seconds an element.

    Attributes:
      encode: with error feedback.
      decode: of each payload, which is added to the sum.
      write: of the sum, once for all payloads.
    """

    encode: float
    decode: float
    write: float


@dataclass(frozen=True)
class Cost:
    """What one rank does in a step; costs of several buckets add up.

    Attributes:
      sent: bytes.
      messages: one after the other.
      kernels: seconds.
    """

    sent: int = 0
    messages: int = 0
    kernels: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.sent + other.sent, self.messages + other.messages, self.kernels + other.kernels
        )

    def communication(self, link: Link) -> float:
        """Seconds on the link."""
        return self.sent / link.bandwidth + self.messages * link.latency

    def total(self, link: Link) -> float:
        """Seconds on the link and in kernels, of which none overlaps."""
        return self.communication(link) + self.kernels


def bucket_cost(
    route: str, ranks: int, raw: int, payload: int, speed: KernelSpeed | None = None
) -> Cost:
    """The cost of reducing one bucket over all ranks.

    Args:
      route: "dense", "all_gather" or "two_phase".
      ranks: that take part.
      raw: bytes of the gradients, as float32 where they are encoded.
      payload: bytes of their payload; not used by "dense".
      speed: of the codec's kernels; "dense" needs none.
    Raises:
      ValueError: the route is unknown, or the kernels' speed is not given.
    """
    sent = sent_bytes(route, ranks, raw, payload)
    if route == "dense":
        return Cost(sent, 2 * (ranks - 1))
    if speed is None:
        raise ValueError(f"the route {route!r} runs kernels: give their speed")
    numel = raw / _FLOAT_BYTES
    if route == "all_gather":
        kernels = speed.encode + ranks * speed.decode + speed.write
        return Cost(sent, ranks - 1, numel * kernels)
    # Each rank sums its own chunk, and one payload of everything comes back.
    chunk = ranks * speed.decode + speed.write + speed.encode
    kernels = speed.encode + chunk / ranks + speed.decode + speed.write
    return Cost(sent, 2 * (ranks - 1), numel * kernels)


def break_even(cost: Cost, dense: Cost, latency: float) -> tuple[float, float] | None:
    """The bandwidths, in bytes a second, between which `cost` takes less time than `dense`.

    Returns:
      (low, high), from 0 where no link is too slow, to infinity where none is too fast; None where
      it never takes less.
    """
    fewer = dense.sent - cost.sent
    longer = (cost.messages - dense.messages) * latency + cost.kernels - dense.kernels
    if fewer <= 0 <= longer:
        return None
    if longer <= 0 <= fewer:
        return 0.0, float("inf")
    crossing = fewer / longer
    return (0.0, crossing) if fewer > 0 else (crossing, float("inf"))
