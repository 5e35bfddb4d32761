"""What is compared, what is asked of it, and what came of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Method:
    """One way to reduce all gradients of a model.

    Attributes:
      spec: gradcomp's codec; None where Horovod or PyTorch does it alone.
      half: whether Horovod casts to FP16 on the way.
      target: least speed-up over Horovod float32 for ResNet-50 between 4 hosts at 1 Gbit/s, whose
        ranks share two cores; None where nothing is asked.
    """

    label: str
    spec: str | None = None
    half: bool = False
    target: float | None = None


BASELINE = Method("Horovod float32")
METHODS = (
    BASELINE,
    Method("Horovod FP16", half=True),
    Method("none", "none"),
    Method("FP16", "fp16", target=1.7),
    Method("FP8", "fp8"),
    Method("8-bit", "quantize:bits=8"),
    Method("4-bit", "quantize:bits=4", target=4.5),
    Method("sign", "sign", target=9.0),
    Method("top-k 1 %", "topk:density=0.01", target=14.0),
)
# What PyTorch's users have, where PyTorch is installed.
DDP = tuple(
    Method(f"DDP {how}") for how in ("float32", "FP16 hook", "PowerSGD rank 1", "PowerSGD rank 4")
)
SMALL, SMALL_SPEEDUP = "small", 1 / 1.1  # many small tensors: no slower than Horovod, nearly
ATTAINED = 0.8  # least fraction of the attainable speed, in every row of ours


@dataclass(frozen=True)
class Case:
    """Where the methods are compared: `link` as `tc` names rates, "unshaped" or "loopback"."""

    link: str
    ranks: int
    model: str


@dataclass(frozen=True)
class Row:
    """One method in one case; times in seconds, bytes of one rank, on average over ranks.

    Attributes:
      times: of a whole step, the slowest rank's, one a round.
      sent: bytes a step, counted by the network interface.
      planned: bytes a step by the plan; 0 for Horovod.
      goodput: bytes a second that a rank sends while all others do.
      kernels: CPU seconds of one rank's kernels a step, while all ranks run theirs.
      predicted: seconds a step by the model of `gradcomp plan`; 0 for Horovod.
    """

    case: Case
    method: str
    times: tuple[float, ...]
    sent: float
    planned: int
    goodput: float
    kernels: float
    predicted: float = 0.0

    @property
    def time(self) -> float:
        return median(self.times)

    @property
    def spread(self) -> float:
        """Half of the distance between the quartiles, over the median."""
        ordered = sorted(self.times)
        quarter = len(ordered) // 4
        return (ordered[-1 - quarter] - ordered[quarter]) / 2 / self.time

    @property
    def attainable(self) -> float:
        """The least time: the link's for the bytes, or the kernels' on the cores that are there."""
        return max(self.sent / self.goodput, self.kernels * ranks_a_core(self.case.ranks))

    @property
    def attained(self) -> float:
        return self.attainable / self.time


def ranks_a_core(ranks: int) -> float:
    """How many ranks share a core of this machine."""
    return max(1.0, ranks / len(os.sched_getaffinity(0)))


@dataclass(frozen=True)
class Verdict:
    """A row against the baseline of its case; `faults` says in words what is missed."""

    speedup: float
    faults: tuple[str, ...]


def judge(rows: list[Row]) -> list[Verdict]:
    """One verdict a row."""
    base = {row.case: row.time for row in rows if row.method == BASELINE.label}
    methods = {method.label: method for method in (*METHODS, *DDP)}
    verdicts = []
    for row in rows:
        method, speedup, faults = methods[row.method], base[row.case] / row.time, []
        if method.spec is not None:
            if row.attained < ATTAINED:
                faults.append(f"{row.attained:.2f} of attainable, not {ATTAINED:g}")
            if row.planned and not 0.95 <= row.sent / row.planned <= 1.05 and _bytes_tell(row):
                faults.append(f"{row.sent / row.planned:.2f} of the planned bytes")
            if row.case.model == SMALL and speedup < SMALL_SPEEDUP:
                faults.append(f"{1 / speedup:.2f} × Horovod float32's time, not 1.1")
            asked = method.target
            if asked and _asked_here(row.case) and speedup < asked:
                faults.append(f"{speedup:.1f} × Horovod float32, not {asked:g}")
        verdicts.append(Verdict(speedup, tuple(faults)))
    return verdicts


def _asked_here(case: Case) -> bool:
    return case == Case("1gbit", 4, "resnet50")


def _bytes_tell(row: Row) -> bool:
    """Horovod's control messages are lost among a megabyte, not among less."""
    return row.planned >= 1 << 20
