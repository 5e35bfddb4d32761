"""`gc.report`: what became of each variable's gradient in the last step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradcomp import live, record
from gradcomp.bucket import Bucket, VariableSpec
from gradcomp.plan import as_text, shape_text
from gradcomp.record import LastStep

# What can have happened.
COMPRESSED = "compressed"
DENSE = "sent dense"
ROWS = "rows compressed"
DENSE_ROWS = "rows uncompressed"
NOT_SENT = "not sent"
NO_GRADIENT = "no gradient"
NOT_FINITE = "not finite"
SKIPPED = "skipped"
NOTHING_YET = "nothing yet"


@dataclass(frozen=True)
class ReportedVariable:
    """One variable's gradient in the last step.

    Attributes:
      path: the variable's; `tensor_0`, … where there is none.
      codec: spec of the codec in force, or "none".
      route: "dense", "all_gather", "two_phase", "rows" for slices, "none" where nothing is sent.
      raw_bytes: of the gradient, uncompressed and as a tensor.
      payload_bytes: what stands for it on the wire, once; None where it depends on the rows.
      happened: "compressed", "sent dense", "rows compressed", "rows uncompressed", "not sent",
        "no gradient", "not finite", "skipped" or "nothing yet".
      why: a few words; empty where there is nothing to explain.
    """

    path: str
    shape: tuple[int, ...]
    codec: str
    route: str
    raw_bytes: int
    payload_bytes: int | None
    happened: str
    why: str = ""


@dataclass(frozen=True)
class ReportedExchange:
    """An optimizer, a tape, or tensors that are reduced with a state, as this process sees it.

    Attributes:
      name: prefix of its operations' names.
      engine: what its gradients go through.
      variables: in the order of the model.
    """

    name: str
    engine: str
    variables: tuple[ReportedVariable, ...]

    def __str__(self) -> str:
        from rich.table import Table

        table = Table(title=f"{self.name}: {self.engine}")
        long = any(len(v.path) > 44 for v in self.variables)
        table.add_column("variable", overflow="fold", no_wrap=not long)
        table.add_column("shape", justify="right", no_wrap=True)
        table.add_column("codec", overflow="fold")
        table.add_column("route", no_wrap=True)
        table.add_column("raw bytes", justify="right", no_wrap=True)
        table.add_column("payload bytes", justify="right", no_wrap=True)
        table.add_column("last step", overflow="fold")
        for v in self.variables:
            payload = "by rows" if v.payload_bytes is None else f"{v.payload_bytes:,}"
            told = f"{v.happened}: {v.why}" if v.why else v.happened
            row = (v.path, shape_text(v.shape), v.codec, v.route, f"{v.raw_bytes:,}", payload, told)
            table.add_row(*row)
        return as_text(table)


@dataclass(frozen=True)
class Report:
    """What became of gradients in this process; `print` it.

    Attributes:
      exchanges: oldest first.
    """

    exchanges: tuple[ReportedExchange, ...]

    def __str__(self) -> str:
        if not self.exchanges:
            return "gradcomp exchanges no gradients in this process: no optimizer was built yet"
        return "".join(map(str, self.exchanges)).rstrip("\n")


def report() -> Report:
    """Tells of every variable what happened to its gradient in the last step.

    The last step is the last that was exchanged, or skipped for an overflow; steps that only
    accumulate don't count. Nothing is sent: each rank may ask by itself, at any time.

    Of a strategy's replicas the first of this process is shown; what happened, happened to all.
    """
    firsts: dict[str, Any] = {}
    for key, reducer in live.reducers().items():
        # Tensors without a state are reduced under one name, which is then counted.
        firsts.setdefault(re.sub(r"\.replica\d+(?=#|$)", "", key), reducer)
    exchanges = [_exchange(name, reducer) for name, reducer in firsts.items()]
    exchanges += map(_bypass, live.bypassed())
    return Report(tuple(exchanges))


def _exchange(name: str, reducer: Any) -> ReportedExchange:
    plan, last, sparse = reducer.plan, reducer.record.read(), frozenset(reducer.sparse_indices)
    told = {}
    for stages in plan.stages:
        for v in stages[-1].variables:
            if reducer.alone:
                told[v.index] = _alone(v, last)
            elif v.index in sparse:
                told[v.index] = _rows(v, stages[-1], last, plan)
            else:
                told[v.index] = _tensor(v, stages, last, plan)
    variables = tuple(told[v.index] for v in plan.variables)
    return ReportedExchange(name, reducer.collective.engine, variables)


def _bypass(told: live.Bypass) -> ReportedExchange:
    happened = NOT_SENT if told.alone else DENSE
    route = "none" if told.alone else "dense"
    variables = []
    for i, (path, shape, dtype) in enumerate(told.variables):
        raw = VariableSpec(i, path, shape, dtype, None).raw_bytes
        one = (path, shape, "none", route, raw, 0 if told.alone else raw)
        given = i in told.given
        variables.append(
            ReportedVariable(*one, happened, told.why)
            if given
            else ReportedVariable(*one, NO_GRADIENT)
        )
    return ReportedExchange(told.name, told.engine, tuple(variables))


def _alone(v: VariableSpec, last: LastStep) -> ReportedVariable:
    happened, why = _common(v, last, 1) or (NOT_SENT, "there is nobody to exchange it with")
    return ReportedVariable(v.path, v.shape, _spec(v.codec), "none", v.raw_bytes, 0, happened, why)


def _tensor(
    v: VariableSpec, stages: Sequence[Bucket], last: LastStep, plan: Any
) -> ReportedVariable:
    bucket = stages[last.stage]
    final = bucket is stages[-1]
    codec = bucket.codec or (v.codec if final else None)
    payload = v.raw_bytes if bucket.codec is None else bucket.codec.payload_size(v.numel)
    if bucket.codec is not None:
        usual = COMPRESSED, _some(v, last, plan) or _why_compressed(v)
    elif final:
        usual = DENSE, _why_dense(v, plan)
    else:
        usual = DENSE, f"warm-up, epoch {last.stage + 1} of {plan.warmup_epochs}"
    happened, why = _common(v, last, plan.world_size) or usual
    return ReportedVariable(
        v.path, v.shape, _spec(codec), bucket.route, v.raw_bytes, payload, happened, why
    )


def _rows(v: VariableSpec, bucket: Bucket, last: LastStep, plan: Any) -> ReportedVariable:
    if plan.hosts is not None and bucket.codec is not None:
        usual = DENSE_ROWS, "rows are not compressed where hosts are summed first"
    elif v.codec is not None and v.codec.decides:
        usual = DENSE_ROWS, "an Auto leaves rows as they are"
    elif bucket.codec is None:
        usual = DENSE_ROWS, _why_dense(v, plan)
    else:
        usual = ROWS, _some(v, last, plan)
    happened, why = _common(v, last, plan.world_size) or usual
    return ReportedVariable(
        v.path, v.shape, _spec(v.codec), "rows", v.raw_bytes, None, happened, why
    )


def _common(v: VariableSpec, last: LastStep, size: int) -> tuple[str, str] | None:
    """What happens to a gradient whatever its form and codec; None for what is usual."""
    if last.outcome == record.NOTHING:
        return NOTHING_YET, ""
    if last.outcome == record.SKIPPED:
        return SKIPPED, "a gradient was not finite, so nothing was exchanged"
    if last.ranks[v.index] == 0:
        return NO_GRADIENT, f"none on any of {size} ranks" if size > 1 else ""
    if last.outcome == record.NOT_FINITE:
        return NOT_FINITE, "a reduced value of this step was not; residuals stay as they were"
    return None


def _some(v: VariableSpec, last: LastStep, plan: Any) -> str:
    ranks = last.ranks[v.index]
    return "" if ranks == plan.world_size else f"a gradient on {ranks} of {plan.world_size} ranks"


def _why_compressed(v: VariableSpec) -> str:
    return "auto chose it" if v.codec is not None and v.codec.decides else ""


def _why_dense(v: VariableSpec, plan: Any) -> str:
    if v.codec is None:
        return v.why
    if v.codec.decides:
        return "no candidate was predicted to be faster"
    if v.codec.routes == ("dense",):
        return f"{v.codec.name} sends gradients as they are"
    return f"among {plan.exchanging} ranks the route with the fewest bytes is dense"


def _spec(codec: Any) -> str:
    return "none" if codec is None else codec.spec
