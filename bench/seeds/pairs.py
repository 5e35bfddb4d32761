"""What pairs of trainings say about a codec, and the bound that it must keep."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from bench.demo.runs import BASELINE

MAX_LOSS = 0.5
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Training:
    """One training. `start` digests the weights and the batch that it began with, `end` the weights
    that it ended with; accuracies are test accuracies in percent, `curve` after each epoch.
    """

    codec: str
    compression: str
    engine: str
    seed: int
    data: str
    steps: int
    accuracy: float
    curve: list[float]
    start: str
    end: str
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """A codec against no compression, from pairs of trainings of one seed each.

    Attributes:
      accuracy: mean over the seeds, in percent.
      differences: accuracy minus that without compression, in percentage points, by seed.
      mean: of the differences.
      margin: half the width of the mean's confidence interval; infinite with one pair.
    """

    codec: str
    accuracy: float
    differences: list[float]
    mean: float
    margin: float

    @property
    def kept(self) -> bool:
        """Whether the mean is in the bound."""
        return round(self.mean, 2) >= -MAX_LOSS

    @property
    def sure(self) -> bool:
        """Whether all of the interval is in the bound."""
        return round(self.mean - self.margin, 2) >= -MAX_LOSS


def margin(differences: Sequence[float]) -> float:
    """Half the width of the interval that holds the mean of paired differences.

    Student's t with one degree of freedom less than there are pairs: it takes the differences, not
    the accuracies, as normally distributed.
    """
    n = len(differences)
    if n < 2:
        return math.inf
    quantile = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))
    return quantile * statistics.stdev(differences) / math.sqrt(n)


def compare(trainings: Sequence[Training], codec: str) -> Comparison:
    """`trainings` holds one of each seed without compression, and one with `codec`.

    Raises:
      ValueError: the two of a seed did not begin alike, so that they are no pair.
    """
    plain = {t.seed: t for t in trainings if t.codec == BASELINE.label}
    compressed = {t.seed: t for t in trainings if t.codec == codec and t.engine == "optimizer"}
    if plain.keys() != compressed.keys():
        raise ValueError(f"{codec}: seeds {sorted(compressed)}, without codec {sorted(plain)}")
    for seed, training in compressed.items():
        if training.start != plain[seed].start:
            raise ValueError(f"{codec}, seed {seed}: begun with other weights or data than plain")
    differences = [round(t.accuracy - plain[s].accuracy, 4) for s, t in sorted(compressed.items())]
    return Comparison(
        codec,
        statistics.fmean(t.accuracy for t in compressed.values()),
        differences,
        statistics.fmean(differences),
        margin(differences),
    )


def hook_differs(trainings: Sequence[Training]) -> list[str]:
    """Codecs whose weights after `CompressedAllReduce` are not, bit for bit, the optimizer's."""
    by_optimizer = {(t.codec, t.seed): t.end for t in trainings if t.engine == "optimizer"}
    hooks = [t for t in trainings if t.engine == "hook"]
    return [t.codec for t in hooks if t.end != by_optimizer[t.codec, t.seed]]
