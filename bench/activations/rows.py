"""What was measured of each method, and which targets it reaches."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.activations.methods import AUTO, PLAIN, RECOMPUTE_GRAD, RECOMPUTED


@dataclass(frozen=True)
class Row:
    """One method on one model.

    Attributes:
      peak_mb: megabytes (10⁶ bytes) that a step takes above the model's own.
      memory: of the plain method's.
      error: of the gradients, the norm of the difference relative to float32's.
      seconds: of a step, the median.
      time: of the plain method's in the same round, the median of the rounds.
      time_low, time_high: the smallest and largest of the rounds' ratios.
      failure: why it can't be run, or is not timed; nothing but the error is known then.
    """

    model: str
    method: str
    peak_mb: float = 0.0
    memory: float = 0.0
    error: float = 0.0
    seconds: float = 0.0
    time: float = 0.0
    time_low: float = 0.0
    time_high: float = 0.0
    failure: str = ""


def make_row(
    model: str,
    method: str,
    checked: dict[str, float],
    plain_checked: dict[str, float],
    rounds: Sequence[Sequence[float]],
    plain_rounds: Sequence[Sequence[float]],
) -> Row:
    """`rounds` are durations of a method's steps in seconds, `plain_rounds` of plain ones."""
    ratios = [
        statistics.median(own) / statistics.median(plain)
        for own, plain in zip(rounds, plain_rounds, strict=True)
    ]
    return Row(
        model,
        method,
        peak_mb=round(checked["peak"] / 1e6, 1),
        memory=round(checked["peak"] / plain_checked["peak"], 4),
        error=float(f"{checked['error']:.3g}"),
        seconds=round(statistics.median([s for own in rounds for s in own]), 4),
        time=round(statistics.median(ratios), 4),
        time_low=round(min(ratios), 4),
        time_high=round(max(ratios), 4),
    )


@dataclass(frozen=True)
class Target:
    """An upper bound for a figure of a row, times that of a row of another method if one is given.

    Attributes:
      figure: "memory", "time" or "error".
      of: "" for figures that are relative to plain already.
    """

    model: str
    method: str
    figure: str
    bound: float
    of: str = ""

    def __str__(self) -> str:
        other = f" × {self.of}" if self.of else ""
        return f"{self.model}, {self.method}: {self.figure} ≤ {self.bound:g}{other}"


_NET = "transformer"
TARGETS = (
    Target(_NET, "FP16", "memory", 0.30),
    Target(_NET, "FP16", "time", 1.12),
    Target(_NET, "8-bit", "memory", 0.18),
    Target(_NET, "8-bit", "time", 1.12),
    Target(_NET, "4-bit", "memory", 0.12),
    Target(_NET, "4-bit", "time", 1.18),
    Target(_NET, "8-bit" + RECOMPUTED, "memory", 0.09),
    Target(_NET, "8-bit" + RECOMPUTED, "time", 1.35),
    Target(_NET, "8-bit" + RECOMPUTED, "time", 1.05, RECOMPUTE_GRAD),
    Target(_NET, AUTO + "8-bit", "memory", 0.55),
    Target("mlp", "FP16" + RECOMPUTED, "memory", 0.7, RECOMPUTE_GRAD),
    *(
        Target(_NET, name + again, "error", bound)
        for again in ("", RECOMPUTED)
        for name, bound in (("FP16", 1e-4), ("8-bit", 2e-3), ("4-bit", 4e-2))
    ),
)

# Gradients further off than this are wrong, not coarse: what is verified before steps are timed.
_WRONG = {"FP16": 5e-3, "FP8": 0.25, "8-bit": 5e-2, "4-bit": 0.6}


@dataclass(frozen=True)
class Verdict:
    """Whether a target is reached, and the figure that says so; None if it wasn't measured."""

    target: Target
    figure: float | None

    @property
    def reached(self) -> bool | None:
        return None if self.figure is None else self.figure <= self.target.bound


def judge(rows: Sequence[Row]) -> list[Verdict]:
    """A verdict on each of the targets."""
    figures = {(r.model, r.method): r for r in rows if not r.failure}

    def verdict(target: Target) -> Verdict:
        row = figures.get((target.model, target.method))
        other = figures.get((target.model, target.of))
        if row is None or (target.of and other is None):
            return Verdict(target, None)
        figure: float = getattr(row, target.figure)
        return Verdict(target, figure / getattr(other, target.figure) if other else figure)

    return [verdict(target) for target in TARGETS]


def wrong(method: str, error: float) -> bool:
    """Whether a method of ours gives gradients that its codec's error does not explain."""
    if method == PLAIN:
        return error > 1e-5
    name = method.removeprefix(AUTO).removesuffix(RECOMPUTED)
    return not error <= _WRONG.get(name, float("inf"))
