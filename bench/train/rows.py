"""What is trained, by which methods, what is asked of them, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from bench.seeds.pairs import margin


@dataclass(frozen=True)
class Method:
    """One way to reduce gradients.

    Attributes:
      spec: gradcomp's codec; None where Horovod does it alone.
      half: whether Horovod casts to FP16 on the way.
    """

    label: str
    spec: str | None = None
    half: bool = False


BASELINE, HALF = Method("Horovod float32"), Method("Horovod FP16", half=True)
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
# Least factors by which the best codec reaches the accuracy sooner than Horovod does, for the
# model of dense layers between 4 hosts at 1 Gbit/s; percentage points that a codec may cost; and
# how much longer auto's step may be, for the convolutional model on links without a limit.
SOONER, SOONER_THAN_HALF, MAX_LOSS, MAX_SLOWER = 4.0, 2.0, 0.3, 0.03


@dataclass(frozen=True)
class Case:
    """Where a model is trained: `link` as `tc` names rates, "unshaped" or "loopback"."""

    model: str
    link: str
    ranks: int


@dataclass(frozen=True)
class Training:
    """One training.

    Attributes:
      start: digest of the weights and the batch that rank 0 began with.
      batch: examples a step, of all ranks.
      times: seconds of each step on rank 0; all ranks begin a step together.
      sent: bytes a step that a rank sends, by its interface, mean over ranks.
      curve: (steps, test accuracy in percent) at times.
      planned: bytes a step by gradcomp's plan after the last; 0 for Horovod.
      chosen: codecs of the plan's buckets after the last step.
    """

    case: Case
    method: str
    seed: int
    start: str
    batch: int
    times: tuple[float, ...]
    sent: float
    curve: tuple[tuple[int, float], ...]
    planned: int
    chosen: str

    @property
    def accuracy(self) -> float:
        """At the end, in percent."""
        return self.curve[-1][1]

    def seconds_to(self, accuracy: float) -> float | None:
        """Of training, without evaluation, until it was first found; None if it never was."""
        reached = (steps for steps, found in self.curve if found >= accuracy)
        steps = next(reached, None)
        return None if steps is None else sum(self.times[:steps])


@dataclass(frozen=True)
class Row:
    """One method in one case, over all seeds.

    Attributes:
      step: seconds, the median.
      samples: a second, of all ranks.
      reached: seconds to the accuracy, the median over seeds; None if a seed never got there.
      sooner, sooner_than_half: how many times sooner than Horovod float32 and FP16.
      accuracy: the mean, in percent.
      difference, margin: from float32, paired by seed, in percentage points; half the width of the
        95 % interval of its mean, infinite with one seed.
      faults: in words, what is missed of what is asked here.
    """

    case: Case
    method: str
    step: float
    samples: float
    sent: float
    reached: float | None
    sooner: float | None
    sooner_than_half: float | None
    accuracy: float
    difference: float
    margin: float
    chosen: str
    faults: tuple[str, ...] = ()


def rows_of(trainings: Sequence[Training], target: float, full: bool) -> list[Row]:
    """One case's rows.

    Args:
      target: accuracy that has to be reached, in percent.
      full: whether it is a training of full length, whose final accuracy says something.

    Raises:
      ValueError: trainings of one seed did not begin alike, so that they are no pair.
    """
    by_method: dict[str, list[Training]] = {}
    for training in trainings:
        by_method.setdefault(training.method, []).append(training)
    plain = by_method[BASELINE.label]
    _demand_pairs(by_method, plain)
    half = _reached(by_method.get(HALF.label, []), target)
    rows = []
    for method, mine in by_method.items():
        step, reached = median(t for one in mine for t in one.times), _reached(mine, target)
        pairs = [one.accuracy - other.accuracy for one, other in zip(mine, plain, strict=True)]
        row = Row(
            mine[0].case,
            method,
            step,
            mine[0].batch / step,
            fmean(one.sent for one in mine),
            reached,
            _ratio(_reached(plain, target), reached),
            _ratio(half, reached),
            fmean(one.accuracy for one in mine),
            fmean(pairs),
            margin(pairs),
            mine[0].chosen,
        )
        rows.append(row)
    return [_judged(row, rows, full) for row in rows]


def unmet(rows: Sequence[Row]) -> list[str]:
    """What is asked of the best of a case's rows and not kept, and what is asked of each."""
    case, told = rows[0].case, [f"{row.method}: {fault}" for row in rows for fault in row.faults]
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


def _judged(row: Row, rows: Sequence[Row], full: bool) -> Row:
    faults = []
    if row.method not in (BASELINE.label, HALF.label) and full and row.difference < -MAX_LOSS:
        faults.append(f"{row.difference:+.2f} points of accuracy, not {-MAX_LOSS:g}")
    if row.method == AUTO.label and row.case.model == "conv" and row.case.link == "unshaped":
        plain = next(r for r in rows if r.method == BASELINE.label)
        if row.step > (1 + MAX_SLOWER) * plain.step:
            slower = row.step / plain.step - 1
            faults.append(f"a step takes {slower:.1%} longer, not {MAX_SLOWER:.0%}")
    return Row(**{**vars(row), "faults": tuple(faults)})


def _demand_pairs(by_method: dict[str, list[Training]], plain: Sequence[Training]) -> None:
    for method, mine in by_method.items():
        if [(t.seed, t.start) for t in mine] != [(t.seed, t.start) for t in plain]:
            raise ValueError(f"{method} began with other seeds, weights or data than float32")


def _reached(trainings: Sequence[Training], target: float) -> float | None:
    times = [training.seconds_to(target) for training in trainings]
    reached = [t for t in times if t is not None]
    return median(reached) if reached and len(reached) == len(times) else None


def _ratio(theirs: float | None, ours: float | None) -> float | None:
    return None if theirs is None or ours is None else theirs / ours
