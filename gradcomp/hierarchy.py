"""A hierarchical exchange: uncompressed among the ranks of a host, compressed between hosts.

The gradients of a host's ranks are summed. The host's first rank, its leader, adds the residual to
the sum, encodes it and exchanges it with the other leaders as `gradcomp.exchange` does; the others
wait and get the result. So residuals are kept by leaders only, one for each host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradcomp.bucket import Bucket
from gradcomp.collective import Collective, Meter
from gradcomp.exchange import Exchange, Randomness, Reduced, widened
from gradcomp.feedback import BucketState

if TYPE_CHECKING:
    import tensorflow as tf

Ranks = tuple[int, ...]


@dataclass(frozen=True)
class Levels:
    """What one rank takes part in.

    Attributes:
      local: the ranks of its host; rank 0 of them leads.
      cross: the leaders, host by host; None on ranks that don't lead.
      leaves_host: whether the next of all ranks is on another host.
    """

    local: Collective
    cross: Collective | None
    leaves_host: bool

    @classmethod
    def of(
        cls, rank: int, hosts: Sequence[Ranks], collective_of: Callable[[Ranks], Collective]
    ) -> Levels:
        """The levels of `rank`, where `hosts` lists each host's ranks in ascending order."""
        mine = next(host for host in hosts if rank in host)
        leaders = tuple(host[0] for host in hosts)
        following = (rank + 1) % sum(map(len, hosts))
        return cls(
            collective_of(mine),
            collective_of(leaders) if rank in leaders else None,
            following not in mine,
        )

    def metered(self) -> MeteredLevels:
        """The same, with bytes counted from zero."""
        cross = None if self.cross is None else Meter(self.cross)
        return MeteredLevels(Meter(self.local), cross, self.leaves_host)


@dataclass(frozen=True)
class MeteredLevels(Levels):
    """Levels whose collectives count the bytes that this rank sends."""

    local: Meter
    cross: Meter | None

    def metered(self) -> MeteredLevels:
        """As `Levels.metered`."""
        return MeteredLevels(self.local.fork(), self.cross and self.cross.fork(), self.leaves_host)

    def sent(self, flat: Any) -> tuple[Any, Any]:
        """(bytes to other hosts, bytes within the host).

        Args:
          flat: bytes sent in collectives of all ranks, which are rings of neighbours.
        """
        between = 0 if self.cross is None else self.cross.sent
        within = self.local.sent
        return (between + flat, within) if self.leaves_host else (between, within + flat)


@dataclass
class Meters:
    """All that counts bytes in a step: what goes to all ranks, and the levels, if there are any."""

    flat: Meter
    levels: MeteredLevels | None = None

    def fork(self) -> Meters:
        """Ones for a branch of a graph: what they count has to be returned from the branch."""
        return Meters(self.flat.fork(), self.levels and self.levels.metered())

    def counts(self) -> list[tf.Tensor]:
        """int64 scalars, for `add`."""
        import tensorflow as tf

        return [tf.cast(meter.sent, tf.int64) for meter in self._all()]

    def add(self, counts: Sequence[Any]) -> None:
        """Adds what a branch has counted."""
        for meter, count in zip(self._all(), counts, strict=True):
            meter.sent += count

    def sent(self) -> tuple[Any, Any]:
        """(bytes sent, or those to other hosts where there are levels; bytes within the host)."""
        return (self.flat.sent, 0) if self.levels is None else self.levels.sent(self.flat.sent)

    def _all(self) -> list[Meter]:
        levels = () if self.levels is None else (self.levels.local, self.levels.cross)
        return [self.flat, *(meter for meter in levels if meter is not None)]


@dataclass(frozen=True)
class HierarchicalExchange:
    """How one bucket's gradients are reduced over all ranks of all hosts; see `Exchange`.

    Attributes:
      bucket: planned for as many exchanging ranks as there are hosts.
      world_size: ranks on all hosts.
    """

    bucket: Bucket
    levels: Levels
    world_size: int
    randomness: Randomness
    average: bool
    name: str
    predivide: float = 1.0

    def __call__(self, gradients: Sequence[tf.Tensor], state: BucketState) -> Reduced:
        """Reduces one tensor a variable, in the bucket's order; `state` is the leader's."""
        import tensorflow as tf

        sums, predivide = widened(gradients), 1.0
        if self.bucket.route == "dense" and self.predivide != 1.0:
            sums, predivide = [s / self.predivide for s in sums], self.predivide
        local, cross = self.levels.local, self.levels.cross
        if local.size > 1:
            sums = local.all_reduce(sums, average=False, name=f"{self.name}.local_sum")
        reduced = Reduced(sums, state, tf.constant(True))
        if cross is not None:
            scale = predivide / self.world_size if self.average else 1.0
            # Where every host has one rank, the engine's own mean has the bits of a flat exchange.
            own = cross.size == self.world_size and predivide == 1.0
            exchange = Exchange(
                self.bucket,
                cross,
                self.randomness,
                self.average,
                self.name,
                scale=None if own else scale,
            )
            reduced = exchange(sums, state)
        values = [tf.cast(r, g.dtype) for r, g in zip(reduced.gradients, gradients, strict=True)]
        finite = tf.reduce_all([reduced.finite, *map(_is_finite_if_narrow, values)])
        if local.size > 1:
            packed = local.broadcast(_pack(values, finite), name=f"{self.name}.local_broadcast")
            values, finite = _unpack(packed, values)
        return Reduced(values, reduced.state, finite)


def _is_finite_if_narrow(value: tf.Tensor) -> tf.Tensor:
    """A narrow dtype may overflow where the sum in float32 did not."""
    import tensorflow as tf

    return value.dtype.size >= 4 or tf.reduce_all(tf.math.is_finite(value))


def _pack(values: Sequence[tf.Tensor], finite: tf.Tensor) -> tf.Tensor:
    """All bits of all values and of the verdict, uint8 [bytes]."""
    import tensorflow as tf

    parts = [tf.reshape(tf.bitcast(value, tf.uint8), [-1]) for value in values]
    return tf.concat([*parts, tf.cast(finite, tf.uint8)[None]], 0)


def _unpack(packed: tf.Tensor, like: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], tf.Tensor]:
    import tensorflow as tf

    sizes = [value.shape.num_elements() * value.dtype.size for value in like]
    *parts, verdict = tf.split(packed, [*sizes, 1])
    values = [
        tf.bitcast(tf.reshape(part, [*value.shape, value.dtype.size]), value.dtype)
        for part, value in zip(parts, like, strict=True)
    ]
    return values, tf.cast(verdict[0], tf.bool)
