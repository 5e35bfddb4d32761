"""Times of functions as multiples of a yardstick that is measured right before each of them.

The machine's speed drifts, and others use its memory: a quotient of two times a moment apart
hardly feels either.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_SAMPLE_SECONDS = 200e-6  # shorter ones are repeated: the clock's own cost would show
_MOST_SECONDS = 4.0  # for one function, unless three samples take longer
_LEAST_SAMPLES = 3


@dataclass(frozen=True)
class Case:
    """Something to be timed: `run`, and before each sample, untimed, `reset`."""

    name: str
    run: Callable[[], object]
    reset: Callable[[], object] = lambda: None


@dataclass
class Timing:
    """Samples of one case: seconds, and multiples of the yardstick."""

    seconds: list[float] = field(default_factory=list)
    multiples: list[float] = field(default_factory=list)

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds)

    @property
    def multiple(self) -> float:
        return statistics.median(self.multiples)

    @property
    def least(self) -> float:
        return min(self.multiples)

    @property
    def spread(self) -> float:
        """Half of the distance between the quartiles of the multiples."""
        if len(self.multiples) < 3:
            return max(self.multiples) - min(self.multiples)
        low, _, high = statistics.quantiles(self.multiples, n=4)
        return (high - low) / 2


def interleave(
    cases: Sequence[Case], yardstick: Callable[[], object], rounds: int
) -> dict[str, Timing]:
    """Times all cases in turn, round after round."""
    timings = {case.name: Timing() for case in cases}
    repeats = {case.name: _repeats(case) for case in cases}
    of_yardstick = _repeats(Case("", yardstick))
    for number in range(rounds):
        for case in cases:
            timing = timings[case.name]
            spent = sum(timing.seconds) * repeats[case.name]
            if number >= _LEAST_SAMPLES and spent > _MOST_SECONDS:
                continue
            case.reset()
            unit = _time(yardstick, of_yardstick)
            seconds = _time(case.run, repeats[case.name])
            timing.seconds.append(seconds)
            timing.multiples.append(seconds / unit)
    return timings


def _repeats(case: Case) -> int:
    case.reset()
    case.run()  # pages are touched, pools started
    case.reset()
    return max(1, math.ceil(_SAMPLE_SECONDS / max(_time(case.run, 1), 1e-7)))


def _time(run: Callable[[], object], repeats: int) -> float:
    begun = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - begun) / repeats
