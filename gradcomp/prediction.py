"""The command `gradcomp plan`: what a step's exchange would cost, by codec and route."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from gradcomp.bucket import choose_route, group_variables
from gradcomp.calibration import CALIBRATION_NUMEL, kernel_speed
from gradcomp.choice import choose
from gradcomp.codecs import Auto, KernelCodec, codec
from gradcomp.cost import ASSUMPTIONS, Cost, KernelSpeed, Link, break_even, bucket_cost
from gradcomp.errors import MissingDependencyError
from gradcomp.kernels import get_num_threads
from gradcomp.models import Weight, numel, weights
from gradcomp.plan import as_text
from gradcomp.policy import Policy

NONE, AUTO = "none", "auto"
CODECS = (
    "fp16",
    "bf16",
    "fp8",
    "quantize:bits=8",
    "quantize:bits=4",
    "quantize:bits=2",
    "sign",
    "topk:density=0.01",
)
RANKS = tuple(2**i for i in range(1, 11))  # of the picture


@dataclass(frozen=True)
class Group:
    """Variables of one bucket; `payload_bytes` are 0 and `routes` dense alone where not encoded."""

    raw_bytes: int
    payload_bytes: int
    routes: tuple[str, ...]

    def cost(self, route: str, ranks: int, speed: KernelSpeed | None) -> Cost:
        route = route if route in self.routes else "dense"
        return bucket_cost(route, ranks, self.raw_bytes, self.payload_bytes, speed)

    def chosen(self, ranks: int) -> str:
        """The route that a plan takes."""
        return choose_route(self.routes, ranks, self.raw_bytes, self.payload_bytes)


@dataclass(frozen=True)
class Row:
    """One codec by one route; `planned` where gradcomp takes it."""

    codec: str
    route: str
    planned: bool
    cost: Cost


def groups_of(model: Sequence[Weight], spec: str) -> list[Group]:
    """The buckets of a model under one codec, or NONE."""
    groups = []
    for variables in group_variables(Policy(spec).plan(model).variables):
        chosen, raw = variables[0].codec, sum(v.raw_bytes for v in variables)
        if chosen is None:
            groups.append(Group(raw, 0, ("dense",)))
        else:
            payload = sum(chosen.payload_size(v.numel) for v in variables)
            groups.append(Group(raw, payload, chosen.routes))
    return groups


def planned_cost(groups: Sequence[Group], ranks: int, speed: KernelSpeed | None) -> Cost:
    """The cost of a step by the routes that a plan takes."""
    return sum((g.cost(g.chosen(ranks), ranks, speed) for g in groups), Cost())


def rows_of(
    buckets: Mapping[str, Sequence[Group]], speeds: Mapping[str, KernelSpeed], ranks: int
) -> list[Row]:
    """Every codec by each of its routes, uncompressed float32 first.

    Args:
      buckets: of each codec's spec and of NONE, as `groups_of` makes them.
      speeds: of each codec.
      ranks: at least 2.
    """
    rows = [Row(NONE, "dense", False, planned_cost(buckets[NONE], ranks, None))]
    for spec, speed in speeds.items():
        encoded = [g for g in buckets[spec] if len(g.routes) > 1]
        chosen = sorted({g.chosen(ranks) for g in encoded}) or ["dense"]
        for route in ("all_gather", "two_phase"):
            if any(route in g.routes for g in encoded):
                cost = sum((g.cost(route, ranks, speed) for g in buckets[spec]), Cost())
                rows.append(Row(spec, route, chosen == [route], cost))
        if "dense" in chosen:  # no row has the plan's own mixture yet
            cost = planned_cost(buckets[spec], ranks, speed)
            rows.append(Row(spec, " + ".join(chosen), True, cost))
    return rows


def auto_row(
    model: Sequence[Weight], speeds: Mapping[str, KernelSpeed], ranks: int, link: Link
) -> Row:
    """What an `Auto` would choose, bucket by bucket.

    Args:
      speeds: of each codec's spec, its candidates' among them.
    """
    plan = Policy(AUTO).plan(model, world_size=ranks)
    cost, names = Cost(), set()
    for ways in plan.alternatives:
        taken = ways[choose(ways, ranks, link, speeds).number]
        speed = None if taken.codec is None else speeds[taken.codec.spec]
        cost += bucket_cost(taken.route, ranks, taken.raw_bytes, taken.payload_bytes, speed)
        if taken.codec is not None:
            names.add(f"{taken.codec.spec} {taken.route}")
    return Row(AUTO, " + ".join(sorted(names)) or "dense", False, cost)


def table(title: str, rows: Sequence[Row], link: Link) -> Table:
    """The rows for people; the first is what all are compared with."""
    made = Table(title=title)
    made.add_column("codec", no_wrap=True)
    made.add_column("route")  # may wrap where numbers are long
    for name in ("sent bytes", "link", "kernels", "total", "speed-up", "break-even"):
        made.add_column(name, justify="right", no_wrap=True)
    dense, latency = rows[0].cost, link.latency
    for row in rows:
        total = row.cost.total(link)
        made.add_row(
            row.codec,
            row.route.replace("_", "-") + (" *" if row.planned else ""),
            f"{row.cost.sent:,}",
            *(_duration(t) for t in (row.cost.communication(link), row.cost.kernels, total)),
            f"{dense.total(link) / total:.2f} ×",
            ""
            if row is rows[0] or row.codec == AUTO
            else _bandwidths(break_even(row.cost, dense, latency)),
        )
    return made


def write_plot(
    title: str,
    buckets: Mapping[str, Sequence[Group]],
    speeds: Mapping[str, KernelSpeed],
    link: Link,
    path: Path,
) -> None:
    """A PNG of the time of a step against the number of ranks, a line a codec."""
    figure = _figure_class()(figsize=(9, 6), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for spec, groups in buckets.items():
        costs = [planned_cost(groups, ranks, speeds.get(spec)) for ranks in RANKS]
        style = "k--" if spec == NONE else "o-"
        times = [1000 * cost.total(link) for cost in costs]
        axes.plot(RANKS, times, style, markersize=3, label=spec)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(RANKS, [str(ranks) for ranks in RANKS])
    axes.set_xlabel("ranks")
    axes.set_ylabel("milliseconds a step, link and kernels (logarithmic)")
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, format="png")


def run(
    model: str,
    ranks: int,
    link: Link,
    link_text: str,
    picture: Path | None = None,
    speed_of: Callable[[KernelCodec], KernelSpeed] = kernel_speed,
) -> int:
    """Prints the table, writes the picture if asked, and returns the exit status.

    Args:
      model: a name or a file, see `gradcomp.models`.
      ranks: at least 2.
      link_text: the link as it is called in titles.
      picture: a PNG to write.
      speed_of: measures a codec's kernels.
    Raises:
      ModelError: the model is not known, or its file does not load.
      MissingDependencyError: TensorFlow for a file, matplotlib for a picture or the native kernels.
      OSError: the picture cannot be written.
    """
    if picture is not None:
        _figure_class()  # before anything is measured
    model_weights = weights(model)
    buckets = {spec: groups_of(model_weights, spec) for spec in (NONE, *CODECS)}
    speeds = {spec: speed_of(_native(spec)) for spec in CODECS}
    gradients = numel([weight.shape for weight in model_weights])
    candidates = {_native(spec).spec: speed for spec, speed in speeds.items()}
    for one in (_native(c.spec) for c in Auto().allowed):
        if one.spec not in candidates:
            candidates[one.spec] = speed_of(one)
    rows = [*rows_of(buckets, speeds, ranks), auto_row(model_weights, candidates, ranks, link)]
    print(as_text(table(f"{model}, {ranks} ranks, {link_text}", rows, link)), end="")
    print(ASSUMPTIONS)
    print(
        f"{gradients:,} gradients in {len(buckets[NONE])} buckets uncompressed; kernels on "
        f"{get_num_threads()} threads, {CALIBRATION_NUMEL:,} elements at a time."
    )
    if picture is not None:
        write_plot(f"{model}, {link_text}", buckets, speeds, link, picture)
        print(f"Wrote {picture}.")
    return 0


def _native(spec: str) -> KernelCodec:
    made = codec(spec)
    assert isinstance(made, KernelCodec)  # all of CODECS
    return made


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            f"a picture needs matplotlib, which does not import ({error}). Type: "
            "pip install matplotlib"
        ) from error
    return Figure


def _duration(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def _bandwidths(between: tuple[float, float] | None) -> str:
    """The bandwidths in words, as bits a second."""
    if between is None:
        return "never"
    low, high = between
    if (low, high) == (0.0, math.inf):
        return "always"
    gigabits = (high if low == 0 else low) * 8 / 1e9
    rate = f"{gigabits:,.1f} Gbit/s" if gigabits >= 1 else f"{1000 * gigabits:,.1f} Mbit/s"
    return f"{'<' if low == 0 else '>'} {rate}"
