"""The handshake: ranks tell each other what they are about to exchange, and agree or all stop."""

from __future__ import annotations

import re
from typing import Any

from gradcomp._version import __version__
from gradcomp.bucket import VariableSpec
from gradcomp.collective import Collective
from gradcomp.errors import MismatchError
from gradcomp.plan import Plan

WIRE_FORMAT = 1


def describe_plan(plan: Plan, **options: Any) -> dict[str, Any]:
    """What has to be equal on all ranks, as plain values in the order in which to compare them."""
    return {
        "hierarchical": plan.hosts is not None,
        "gradcomp version": __version__,
        "wire format": WIRE_FORMAT,
        "world size": plan.world_size,
        "number of variables": len(plan.variables),
        **{
            f"{what} of variable {v.index} ({v.path})": value
            for v in plan.variables
            for what, value in (
                ("shape", v.shape),
                ("dtype", v.dtype),
                ("name", _without_numbers(v.path)),
                ("codec", _specs(v)),
            )
        },
        "ranks on each host": plan.hosts,
        "bucket_bytes": plan.bucket_bytes,
        **options,
    }


def _specs(v: VariableSpec) -> str:
    return ", then ".join("none" if c is None else c.spec for c in (*v.warmup, v.codec))


def shake_hands(collective: Collective, description: dict[str, Any], name: str) -> None:
    """Compares `description` over all ranks.

    Raises:
      MismatchError: the same on all ranks, naming the first difference and who has which value.
    """
    # Paths differ in automatic numbers between ranks, so keys are compared by position.
    items = list(description.items())
    all_items = collective.all_gather_object(items, name=f"{name}.handshake")
    for row in zip(*all_items, strict=False):
        values = [value for _, value in row]
        if any(value != values[0] for value in values):
            raise MismatchError(_difference(row[0][0], values))
    lengths = [len(rank_items) for rank_items in all_items]
    if len(set(lengths)) != 1:
        raise MismatchError(_difference("number of settings", lengths))


def _difference(what: str, values: list[Any]) -> str:
    holders: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        holders.setdefault(str(value), []).append(rank)
    told = "; ".join(
        f"{value} on {'rank' if len(ranks) == 1 else 'ranks'} {_short(ranks)}"
        for value, ranks in holders.items()
    )
    return (
        f"ranks disagree about the {what}: {told}. Nothing was exchanged. "
        "Every rank must build the same model and pass the same options, with the same "
        "gradcomp version."
    )


def _short(ranks: list[int]) -> str:
    head = ", ".join(map(str, ranks[:4]))
    return head if len(ranks) <= 4 else f"{head} and {len(ranks) - 4} more"


def _without_numbers(path: str) -> str:
    """`net_1/dense_2/kernel` → `net/dense/kernel`: Keras numbers names in each process anew."""
    return re.sub(r"_\d+(?=/|$)", "", path)
