"""What the model of `gradcomp plan` says of a row, given what was measured of link and kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench.allreduce.models import MODELS
from bench.allreduce.rows import METHODS, Case, ranks_a_core
from gradcomp.cost import KernelSpeed, Link
from gradcomp.models import Weight
from gradcomp.prediction import groups_of, planned_cost

_NO_KERNELS = KernelSpeed(0.0, 0.0, 0.0)


def predicted(case: Case, label: str, told: dict[str, Any]) -> float:
    """Seconds a step; 0 for what is not ours.

    Args:
      told: goodput, latency and CPU time of kernels, as the ranks found them.
    """
    spec = next((m.spec for m in METHODS if m.label == label), None)
    if spec is None:
        return 0.0
    weights = [Weight(str(i), shape) for i, shape in enumerate(MODELS[case.model]())]
    cost = planned_cost(groups_of(weights, spec), case.ranks, _NO_KERNELS)
    kernels = told["kernels"].get(label, 0.0) * ranks_a_core(case.ranks)
    return replace(cost, kernels=kernels).total(Link(told["goodput"], told["latency"]))
