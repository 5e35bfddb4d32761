"""What is timed and trained, by which methods, what is asked of them, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from bench.seeds.pairs import margin


@dataclass(frozen=True)
class Method:
    """One way to reduce gradients; `spec` is gradcomp's codec, None where Horovod does it alone."""

    label: str
    spec: str | None = None


BASELINE, HALF = Method("Horovod float32"), Method("Horovod FP16")
AUTO = Method("auto", "auto")
METHODS = (
    BASELINE,
    HALF,
    Method("8-bit", "quantize:bits=8"),
    Method("4-bit", "quantize:bits=4"),
    Method("top-k 1 %", "topk:density=0.01"),
    Method("sign", "sign"),
    AUTO,
)
LINKS = ("100mbit", "1gbit", "10gbit", "unshaped")
BETWEEN = "|"  # the codecs of a model's variables
# Least factors by which the best codec reaches the accuracy sooner than Horovod does, for the
# model of dense layers between 4 hosts at 1 Gbit/s; percentage points that a codec may cost; and
# how much longer auto's step may be, for the convolutional model on links without a limit.
SOONER, SOONER_THAN_HALF, MAX_LOSS, MAX_SLOWER = 4.0, 2.0, 0.3, 0.03


@dataclass(frozen=True)
class Case:
    """Where a model is timed: `link` as `tc` names rates, "unshaped" or "loopback"."""

    model: str
    link: str
    ranks: int


@dataclass(frozen=True)
class Timing:
    """Steps of one method on a link.

    Attributes:
      batch: examples a step, of all ranks.
      times: seconds of a step on the slowest rank, one a round; methods take turns in each round.
      sent: bytes a step that a rank sends, by its interface, mean over ranks.
      planned: bytes a step by gradcomp's plan; 0 for Horovod.
      codecs: of each variable, in the model's order; empty for Horovod.
    """

    case: Case
    method: str
    batch: int
    times: tuple[float, ...]
    sent: float
    planned: int
    codecs: tuple[str, ...]

    @property
    def step(self) -> float:
        """Seconds, the median."""
        return median(self.times)

    @property
    def spread(self) -> float:
        """Seconds, half of the distance between the quartiles."""
        ordered = sorted(self.times)
        quarter = len(ordered) // 4
        return (ordered[-1 - quarter] - ordered[quarter]) / 2


@dataclass(frozen=True)
class Training:
    """One training, which learns the same on any link.

    Attributes:
      learns: the label of a method, or a codec for each variable, between `BETWEEN`.
      start: digest of the weights and the batch that rank 0 began with.
      curve: (steps, accuracy in percent of the first test examples) on the way.
      accuracy: of all test examples at the end, in percent.
    """

    model: str
    ranks: int
    learns: str
    seed: int
    steps: int
    start: str
    curve: tuple[tuple[int, float], ...]
    accuracy: float

    def steps_to(self, accuracy: float) -> int | None:
        """Until it was first found; None if it never was."""
        return next((steps for steps, found in self.curve if found >= accuracy), None)


@dataclass(frozen=True)
class Row:
    """One method in one case, over all seeds.

    Attributes:
      learns: whose trainings its accuracy comes from.
      steps: to the target, the median over seeds; None if a seed never got there.
      ratio: of a step's time to Horovod float32's in the same round, the median.
      sooner, sooner_than_half: how many times sooner than Horovod float32 and FP16.
      accuracy: the mean, in percent.
      difference, margin: from float32, paired by seed, in percentage points; half the width of the
        95 % interval of its mean, infinite with one seed.
      faults: in words, what is missed of what is asked here.
    """

    timing: Timing
    learns: str
    steps: float | None
    ratio: float
    sooner: float | None
    sooner_than_half: float | None
    accuracy: float
    difference: float
    margin: float
    faults: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        return self.timing.method

    @property
    def samples(self) -> float:
        """A second, of all ranks."""
        return self.timing.batch / self.timing.step

    @property
    def reached(self) -> float | None:
        """Seconds to the target: the steps to it, each of them the median of the steps timed."""
        return None if self.steps is None else self.steps * self.timing.step


def learned_as(timing: Timing, timings: Sequence[Timing]) -> str:
    """Whose training says what a method learns on its link.

    What an auto chose there is trained: another method's codecs, or a codec for each variable.
    """
    if timing.method != AUTO.label:
        return timing.method
    others = (other for other in timings if other.method != AUTO.label and other.codecs)
    same = next((other.method for other in others if other.codecs == timing.codecs), None)
    return same or BETWEEN.join(timing.codecs)


def rows_of(
    timings: Sequence[Timing], trainings: Sequence[Training], target: float, full: bool
) -> list[Row]:
    """One case's rows.

    Args:
      trainings: of the case's model and ranks.
      target: accuracy that has to be reached, in percent.
      full: whether they are of full length, so that their final accuracy says something.

    Raises:
      ValueError: trainings of one seed did not begin alike, so that they are no pair.
    """
    by_learns: dict[str, list[Training]] = {}
    for training in sorted(trainings, key=lambda training: training.seed):
        by_learns.setdefault(training.learns, []).append(training)
    plain = by_learns[BASELINE.label]
    by_method = {timing.method: timing for timing in timings}
    rows = []
    for timing in timings:
        learns = learned_as(timing, timings)
        mine = by_learns[learns]
        _demand_pairs(timing.method, mine, plain)
        pairs = [one.accuracy - other.accuracy for one, other in zip(mine, plain, strict=True)]
        reached = _seconds(mine, timing, target)
        half = by_method.get(HALF.label)
        row = Row(
            timing,
            learns,
            _steps(mine, target),
            _ratio_of_rounds(timing, by_method[BASELINE.label]),
            _ratio(_seconds(plain, by_method[BASELINE.label], target), reached),
            _ratio(_seconds(by_learns[HALF.label], half, target), reached) if half else None,
            fmean(one.accuracy for one in mine),
            fmean(pairs),
            margin(pairs),
        )
        rows.append(Row(**{**vars(row), "faults": tuple(_faults(row, full))}))
    return rows


def unmet(rows: Sequence[Row]) -> list[str]:
    """What is asked of the best of a case's rows and not kept, and what is asked of each."""
    case = rows[0].timing.case
    told = [f"{row.method}: {fault}" for row in rows for fault in row.faults]
    if case == Case("dense", "1gbit", 4):
        ours = [row for row in rows if row.method not in (BASELINE.label, HALF.label)]
        for least, other, factors in (
            (SOONER, BASELINE.label, [row.sooner for row in ours]),
            (SOONER_THAN_HALF, HALF.label, [row.sooner_than_half for row in ours]),
        ):
            best = max((f for f in factors if f is not None), default=0.0)
            if best < least:
                told.append(f"best codec {best:.2f} × sooner than {other}, not {least:g}")
    return told


def _faults(row: Row, full: bool) -> list[str]:
    faults, case = [], row.timing.case
    ours = row.method not in (BASELINE.label, HALF.label)
    if ours and full and row.difference < -MAX_LOSS:
        faults.append(f"{row.difference:+.2f} points of accuracy, not {-MAX_LOSS:g}")
    asked = row.method == AUTO.label and case.model == "conv" and case.link == "unshaped"
    if asked and row.ratio > 1 + MAX_SLOWER:
        faults.append(f"a step takes {row.ratio - 1:.1%} longer, not {MAX_SLOWER:.0%}")
    return faults


def _demand_pairs(method: str, mine: Sequence[Training], plain: Sequence[Training]) -> None:
    if [(t.seed, t.start) for t in mine] != [(t.seed, t.start) for t in plain]:
        raise ValueError(f"{method} began with other seeds, weights or data than float32")


def _steps(trainings: Sequence[Training], target: float) -> float | None:
    found = [training.steps_to(target) for training in trainings]
    reached = [steps for steps in found if steps is not None]
    return median(reached) if reached and len(reached) == len(found) else None


def _seconds(trainings: Sequence[Training], timing: Timing, target: float) -> float | None:
    steps = _steps(trainings, target)
    return None if steps is None else steps * timing.step


def _ratio(theirs: float | None, ours: float | None) -> float | None:
    return None if theirs is None or ours is None else theirs / ours


def _ratio_of_rounds(timing: Timing, plain: Timing) -> float:
    return median(mine / other for mine, other in zip(timing.times, plain.times, strict=True))
