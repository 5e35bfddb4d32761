"""What was measured of each reduction, and what is wrong with it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.overhead.variants import Variant


@dataclass(frozen=True)
class Row:
    """One reduction. Times are in milliseconds, of single steps in all rounds.

    Attributes:
      median_ms, low_ms, high_ms: the median and the quartiles of a step's duration.
      overhead_ms: the median minus the plain strategy's in the same rounds.
      ratio: to the plain strategy's median of the same round; the median of the rounds' ratios.
      ratio_low, ratio_high: the smallest and the largest of the rounds' ratios.
      faults: what is wrong with the first steps; empty: nothing.
    """

    reduction: str
    kind: str
    choice: str
    parameters: int
    steps: int
    rounds: int
    median_ms: float
    low_ms: float
    high_ms: float
    overhead_ms: float
    ratio: float
    ratio_low: float
    ratio_high: float
    faults: tuple[str, ...]


def faults(variant: Variant, checked: dict[str, Any], plain: dict[str, Any]) -> tuple[str, ...]:
    """What is wrong with a variant's first steps, `checked`, given those of the plain strategy."""
    found = []
    if not checked["finite"]:
        found.append("weights or losses are not finite")
    if not checked["equal"]:
        found.append("the replicas ended with different weights")
    if variant.exact and checked["weights"] != plain["weights"]:
        found.append("the weights differ from the plain strategy's")
    if not variant.exact and checked["weights"] == plain["weights"]:
        found.append("nothing was compressed: the weights are the plain strategy's")
    return tuple(found)


def make_row(
    variant: Variant,
    checked: dict[str, Any],
    plain_checked: dict[str, Any],
    rounds: Sequence[Sequence[float]],
    plain_rounds: Sequence[Sequence[float]],
) -> Row:
    """`rounds` are the durations in seconds of a variant's steps, `plain_rounds` those of the plain
    strategy's in the same rounds; at least two steps each.
    """
    steps = [1000 * seconds for each in rounds for seconds in each]
    plain = [1000 * seconds for each in plain_rounds for seconds in each]
    low, median, high = statistics.quantiles(steps, n=4, method="inclusive")
    ratios = [
        statistics.median(mine) / statistics.median(others)
        for mine, others in zip(rounds, plain_rounds, strict=True)
    ]
    return Row(
        reduction=variant.label,
        kind=variant.kind,
        choice=variant.choice,
        parameters=checked["parameters"],
        steps=len(steps),
        rounds=len(rounds),
        median_ms=round(median, 3),
        low_ms=round(low, 3),
        high_ms=round(high, 3),
        overhead_ms=round(median - statistics.median(plain), 3),
        ratio=round(statistics.median(ratios), 4),
        ratio_low=round(min(ratios), 4),
        ratio_high=round(max(ratios), 4),
        faults=faults(variant, checked, plain_checked),
    )
