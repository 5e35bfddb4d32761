"""What a run measured, and the bound that it must keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.demo.launch import Outcome
from bench.demo.runs import BASELINE, RANKS, SEED, TOPK, WITHOUT_FEEDBACK, Run

MIN_BASELINE_ACCURACY = 88.0
MAX_LOSS = 1.0
MIN_COMPRESSED_SHARE = 0.95


@dataclass(frozen=True)
class Row:
    """One row of the table and of results/demo.json.

    Accuracies are test accuracies in percent. Bytes are those of one rank, exact, as counted at
    the collective. `curve` holds (bytes sent so far, accuracy) after each epoch.
    """

    codec: str
    compression: str
    error_feedback: bool
    accuracy: float
    raw_bytes_per_step: float
    sent_bytes_per_step: float
    compressed_share: float
    compression_ratio: float
    step_ms: float
    steps: int
    curve: list[tuple[int, float]]
    ranks_agree: bool
    data: str
    ranks: int
    seed: int


@dataclass(frozen=True)
class Verdict:
    """`bound` is what was asked for, `faults` is what is wrong with the run; empty: it is kept."""

    bound: str
    faults: tuple[str, ...]

    @property
    def kept(self) -> bool:
        return not self.faults


def make_row(run: Run, outcome: Outcome, data: str) -> Row:
    """`data` is the data set's name."""
    first = outcome.results[0]
    return Row(
        codec=run.label,
        compression=run.compression,
        error_feedback=run.error_feedback,
        accuracy=outcome.epochs[-1]["accuracy"],
        raw_bytes_per_step=first["raw_bytes"] / first["steps"],
        sent_bytes_per_step=first["sent_bytes"] / first["steps"],
        compressed_share=first["compressed_numel"] / first["total_numel"],
        compression_ratio=first["raw_bytes"] / first["sent_bytes"],
        step_ms=round(1000 * first["step_seconds"], 3),
        steps=first["steps"],
        curve=[(epoch["sent_bytes"], epoch["accuracy"]) for epoch in outcome.epochs],
        ranks_agree=len({result["digest"] for result in outcome.results}) == 1,
        data=data,
        ranks=RANKS,
        seed=SEED,
    )


def judge(rows: Sequence[Row], min_harm: float) -> list[Verdict]:
    """One verdict a row; `rows` holds one of each of `RUNS`.

    `min_harm` is how many points of accuracy top-k must lose when its feedback is switched off.
    """
    accuracies = {row.codec: row.accuracy for row in rows}
    return [_judge(row, accuracies, min_harm) for row in rows]


def _judge(row: Row, accuracies: dict[str, float], min_harm: float) -> Verdict:
    # Accuracies come from counts; two decimals keep a run that is on its bound from falling off it.
    accuracy = round(row.accuracy, 2)
    if row.codec == WITHOUT_FEEDBACK.label:
        limit = round(accuracies[TOPK.label] - min_harm, 2)
        bound, kept = f"≤ {limit:.2f} %", accuracy <= limit
    elif row.codec == BASELINE.label:
        limit = MIN_BASELINE_ACCURACY
        bound, kept = f"≥ {limit:.2f} %", accuracy >= limit
    else:
        limit = round(accuracies[BASELINE.label] - MAX_LOSS, 2)
        bound, kept = f"≥ {limit:.2f} %", accuracy >= limit
    faults = [] if kept else [f"accuracy {accuracy:.2f} %, bound {bound}"]
    if row.codec != BASELINE.label and row.compressed_share < MIN_COMPRESSED_SHARE:
        faults.append(
            f"{row.compressed_share:.1%} of the parameters compressed, "
            f"bound ≥ {MIN_COMPRESSED_SHARE:.0%}"
        )
    if not row.ranks_agree:
        faults.append("the ranks ended with different weights")
    return Verdict(bound, tuple(faults))
