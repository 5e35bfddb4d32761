"""Pairs of trainings with and without packed activations, and what they say."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.child import Child, ChildError
from bench.demo.data import find_source
from bench.seeds.pairs import margin

CODECS = {"FP16": "fp16", "8-bit": "quantize:bits=8"}
# How much worse than plain the mean over the seeds may be: percentage points, and nats.
BOUNDS = {"images": 0.3, "text": 0.02}
_SEEDS = (1, 2, 3, 4, 5)
_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class Training:
    """One training. `score` is test accuracy in percent, or minus the loss in nats a character.

    `start` digests the weights and the batch that it began with.
    """

    task: str
    codec: str
    seed: int
    score: float
    start: str
    steps: int


@dataclass(frozen=True)
class Comparison:
    """A codec on a task: scores minus those of plain trainings with the same seed."""

    task: str
    codec: str
    plain: float
    differences: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.differences)

    @property
    def margin(self) -> float:
        """Half the width of the mean's 95 % interval, by Student's t."""
        return margin(self.differences)

    @property
    def kept(self) -> bool:
        """Whether the mean is within the bound."""
        return self.mean >= -BOUNDS[self.task]


def compare(trainings: Sequence[Training], task: str, codec: str) -> Comparison:
    """Raises ValueError if trainings of a seed did not begin alike."""
    plain = {t.seed: t for t in trainings if (t.task, t.codec) == (task, "none")}
    own = {t.seed: t for t in trainings if (t.task, t.codec) == (task, codec)}
    if plain.keys() != own.keys():
        raise ValueError(f"{task}, {codec}: seeds {sorted(own)}, plain has {sorted(plain)}")
    for seed, training in own.items():
        if training.start != plain[seed].start:
            raise ValueError(f"{task}, {codec}, seed {seed}: begun otherwise than plain")
    mean = statistics.fmean(t.score for t in plain.values())
    return Comparison(task, codec, mean, tuple(own[s].score - plain[s].score for s in sorted(own)))


def run(out: Path, quick: bool, console: Console) -> int:
    """Trains all, prints a table; the exit status is 0 if every codec is within its bound."""
    source = "digits" if quick else find_source()
    if source == "digits" and not quick:
        console.print("Fashion-MNIST is not here: install Debian's package dataset-fashion-mnist")
        return 1
    seeds = _SEEDS[:1] if quick else _SEEDS
    jobs = [(t, c, s, source, quick) for s in seeds for t in BOUNDS for c in ("none", *CODECS)]
    trainings = []
    # Each has one thread: two at a time end sooner than two of them in turn on two.
    with (
        (out / "activations-accuracy.jsonl").open("w", encoding="utf-8") as file,
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool,
    ):
        try:
            for made in pool.map(lambda job: _train(*job), jobs):
                trainings.append(made)
                file.write(json.dumps(dataclasses.asdict(made)) + "\n")
                file.flush()
                console.print(f"  {made.task}, {made.codec}, seed {made.seed}: {made.score:.4f}")
        except ChildError as error:
            pool.shutdown(cancel_futures=True)
            console.print(str(error), markup=False)
            return 1
    comparisons = [compare(trainings, task, codec) for task in BOUNDS for codec in CODECS]
    console.print(table(comparisons))
    if quick:
        console.print("Too short to judge accuracy.")
        return 0
    return 0 if all(c.kept for c in comparisons) else 1


def table(comparisons: Sequence[Comparison]) -> Table:
    """One row a task and codec."""
    result = Table(
        title="Trainings with packed activations, against plain ones with the same seed",
        caption="images: test accuracy in percent. text: minus the loss in nats a character.",
    )
    for heading in ("task", "codec", "plain", "mean difference", "95 % interval", "bound", ""):
        result.add_column(heading, no_wrap=True)
    for row in comparisons:
        low, high = row.mean - row.margin, row.mean + row.margin
        result.add_row(
            row.task,
            row.codec,
            f"{row.plain:.3f}",
            f"{row.mean:+.4f}",
            "none" if math.isinf(row.margin) else f"{low:+.4f} … {high:+.4f}",
            f"≥ {-BOUNDS[row.task]:+g}",
            "[green]✓[/]" if row.kept else "[red]✗[/]",
        )
    return result


def _train(task: str, codec: str, seed: int, source: str, quick: bool) -> Training:
    arguments = ["bench.activations.learn", "--task", task, "--seed", str(seed), "--data", source]
    arguments += ["--codec", CODECS.get(codec, "none"), *(["--quick"] if quick else [])]
    with Child(arguments, _TIMEOUT_S) as child:
        return Training(task, codec, seed, **child.answer())
