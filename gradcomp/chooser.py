"""Measures what an exchange between ranks takes, and lets all of them choose alike for `Auto`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

from gradcomp.calibration import codec_speed
from gradcomp.choice import Choice, choose, differs, explain
from gradcomp.collective import Collective
from gradcomp.cost import KernelSpeed, Link
from gradcomp.plan import Plan
from gradcomp.say import say

# Bytes that each rank sends in a small exchange, and how often.
_SMALL, _SMALL_ROUNDS = 64, 3
# In a large one, and again where that took less than `_BRIEF` seconds: noise would be as long.
_LARGE, _LARGER, _LARGE_ROUNDS, _BRIEF = 1 << 19, 1 << 21, 2, 0.005
# After how many steps the link is looked at again: at first, and at most, as each time that it has
# not changed doubles them.
FIRST_LOOK, _LAST_LOOK = 100, 1600


class Chooser:
    """What ranks have measured and chosen; replicas of one process share one.

    All ranks create it at the same point, and call `look` after the same step.

    Args:
      plan: of which some codec decides.
      everyone: all ranks, which have to know.
      exchanging: those among which encoded gradients travel; None on a rank that is none of them.
      name: prefix of the operations' names.

    Attributes:
      numbers: by bucket, which of the plan's alternatives is taken.
      seconds: that the exchanges took by which the link was last measured.
      interval: after how many steps to look again.
    """

    def __init__(
        self,
        plan: Plan,
        everyone: Collective,
        exchanging: Collective | None,
        name: str,
    ) -> None:
        self._plan = plan
        self._everyone, self._exchanging, self._name = everyone, exchanging, f"{name}.auto"
        self._speeds = self._agreed_speeds()
        self._brief, self._link = self._measured()
        self.interval = FIRST_LOOK
        self.numbers = self._chosen(None)

    def look(self) -> bool:
        """Measures again; True if something else was chosen."""
        brief = self._linked(_LARGE)
        before = self.numbers
        if not differs(self._brief, brief):
            self.interval = min(2 * self.interval, _LAST_LOOK)
            return False
        self._brief, self._link = self._measured()
        self.interval = FIRST_LOOK
        self.numbers = self._chosen(before)
        return self.numbers != before

    def _chosen(self, before: tuple[int, ...] | None) -> tuple[int, ...]:
        ranks, ways = self._plan.exchanging, self._plan.alternatives
        # Of a bucket whose codec is fixed there is one way, and no speed was measured.
        choices = {
            i: choose(w, ranks, self._link, self._speeds, None if before is None else before[i])
            for i, w in enumerate(ways)
            if len(w) > 1
        }
        numbers = tuple(choices[i].number if i in choices else 0 for i in range(len(ways)))
        if self._everyone.rank == 0 and numbers != before:
            self._tell(choices)
        return numbers

    def _tell(self, choices: Mapping[int, Choice]) -> None:
        ways = [self._plan.alternatives[i] for i in choices]
        ranks, link = self._plan.exchanging, self._link
        say(explain(ways, list(choices.values()), ranks, link, self.seconds))

    def _measured(self) -> tuple[Link, Link]:
        """The link as a brief look finds it, and as exactly as is affordable."""
        begun = time.perf_counter()
        brief = link = self._linked(_LARGE)
        if _LARGE / brief.bandwidth < _BRIEF:
            link = self._linked(_LARGER)
        self.seconds = time.perf_counter() - begun
        return brief, link

    def _linked(self, large: int) -> Link:
        """The link as the slowest rank finds it."""
        ranks = self._plan.exchanging
        # An all-gather sends a payload to each of the others.
        payload = max(2 * _SMALL, large // (ranks - 1) // 4 * 4)
        mine = None
        if self._exchanging is not None:
            mine = (self._time(_SMALL, _SMALL_ROUNDS, min), self._time(payload, _LARGE_ROUNDS, max))
        everyones = self._everyone.all_gather_object(mine, name=f"{self._name}.times")
        told = [times for times in everyones if times is not None]
        small, long = (max(column) for column in zip(*told, strict=True))
        moving = max(long - small, long / 20)  # noise must not make a link infinitely fast
        return Link((ranks - 1) * (payload - _SMALL) / moving, small / (ranks - 1))

    def _time(self, payload: int, rounds: int, pick: Callable[[list[float]], float]) -> float:
        """Seconds of one exchange; the first, in which ranks wait for each other, does not count.

        Of long ones the longest is picked: a link may let some megabytes pass faster than it can.
        """
        assert self._exchanging is not None
        name = f"{self._name}.{payload}"
        times = [self._exchanging.exchange_time(payload, name=name) for _ in range(rounds + 1)]
        return pick(times[1:])

    def _agreed_speeds(self) -> Mapping[str, KernelSpeed]:
        """Of every candidate the median over ranks, times the ranks that share a process's cores.

        All ranks measure at once, so that ranks of one host share its cores as in training.
        """
        found = {way.codec for ways in self._plan.alternatives for way in ways if len(ways) > 1}
        codecs = sorted((c for c in found if c is not None), key=lambda c: c.spec)
        shared = self._everyone.local
        here = {c.spec: tuple(shared * s for s in _figures(codec_speed(c))) for c in codecs}
        everyones = self._everyone.all_gather_object(here, name=f"{self._name}.speeds")
        return {
            spec: KernelSpeed(*map(median, zip(*(told[spec] for told in everyones), strict=True)))
            for spec in here
        }


def _figures(speed: KernelSpeed) -> tuple[float, float, float]:
    return speed.encode, speed.decode, speed.write
