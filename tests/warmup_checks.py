"""What holds of warm-ups and of momentum correction, each a function that one rank runs.

`test_warmup.py` and `test_momentum.py` run them on `LocalCollective`s, `test_warmup_horovod.py` on
real Horovod processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
from invariants import (
    SHAPES,
    TwoPhaseQuantize,
    chunk_residual_per_variable,
    gradients_of,
    make_plan,
    tensors_of,
)

import gradcomp as gc
from gradcomp.collective import Collective
from gradcomp.momentum import Momentum
from gradcomp.plan import Plan
from gradcomp.reducer import Reducer


@dataclass(frozen=True)
class GatheredTopK(gc.TopK):
    """TopK where all-gather is the only route, whatever it costs."""

    name: ClassVar[str] = "gathered-topk"
    routes: ClassVar[tuple[str, ...]] = ("all_gather",)


WARMUPS = {
    "top-k": gc.Warmup(gc.TopK(density=0.02), epochs=2, start=0.3),
    "none, top-k": gc.Warmup(gc.TopK(density=0.05, values=gc.Identity()), epochs=2, start="none"),
    "8, 4, 2 bits": gc.Warmup(gc.Quantize(bits=2, block_size=32), epochs=2),
    "8, 4, 2 bits, two-phase": gc.Warmup(TwoPhaseQuantize(bits=2, block_size=32), epochs=2),
    "none, 4 bits, two-phase": gc.Warmup(
        TwoPhaseQuantize(bits=4, block_size=64), epochs=1, start="none"
    ),
    "none, fp16": gc.Warmup(gc.FP16(), epochs=1, start="none"),
}


def warm_plan(warmup: gc.Warmup | None, size: int, codec: Any = None, **options: Any) -> Plan:
    """The plan of `invariants.make_plan`, where all variables warm up."""
    codec = codec if warmup is None else warmup.codec
    plan = make_plan(codec, size)
    codecs = () if warmup is None else warmup.codecs(codec)
    return replace(
        plan, variables=tuple(replace(v, warmup=codecs) for v in plan.variables), **options
    )


def stages_conserve(rank: Collective, warmup: gc.Warmup, average: bool, name: str) -> None:
    """Σ applied + Σ residuals = Σ gradients, forwards through the stages, back, and forwards.

    In a stage that is dense, nothing is left to wait.
    """
    plan = warm_plan(warmup, rank.size)
    reducer = Reducer(plan, rank, average=average, name=name)
    given, applied = ([np.zeros(s, np.float64) for s in SHAPES] for _ in range(2))
    share = 1 / rank.size if average else 1.0
    steps = 0
    for stage in (*range(warmup.epochs + 1), 0, warmup.epochs):
        reducer.epoch.set(stage)
        for _ in range(2):
            mine = tensors_of(rank.rank, steps)
            steps += 1
            for i, (g, r) in enumerate(zip(mine, reducer.reduce(mine).gradients, strict=True)):
                given[i] += share * g.numpy()
                applied[i] += r.numpy()
        kept = [*reducer.residuals.values(), *reducer.chunk_residuals.values()]
        dense = all(bucket[stage].route == "dense" for bucket in plan.stages)
        waiting = any(np.any(v.numpy()) for v in kept)
        if rank.size > 1:
            assert waiting != dense, f"stage {stage}"
    if rank.size == 1:
        return
    assert reducer.chunk_residuals or "two-phase" not in plan.variables[0].codec.spec
    second = chunk_residual_per_variable(reducer)
    waiting = [
        share * reducer.residuals[i].numpy().astype(np.float64) + second[i]
        for i in range(len(SHAPES))
    ]
    everyones = rank.all_gather_object((given, waiting), name=f"{name}.check")
    for i in range(len(SHAPES)):
        expected = sum(g[i] for g, _ in everyones)
        arrived = applied[i] + sum(w[i] for _, w in everyones)
        # Values of a few units, and a few roundings of float32 a step.
        np.testing.assert_allclose(arrived, expected, rtol=0, atol=2e-6 * steps * rank.size)


def ranks_agree_on_the_stage(rank: Collective, name: str) -> None:
    """A rank that is told of an epoch early waits for the others, and nobody hangs."""
    warmup = gc.Warmup(gc.TopK(density=0.01), epochs=3, start=0.3)
    plan = warm_plan(warmup, rank.size)
    reducer = Reducer(plan, rank, name=name)
    flags = 4 * (len(plan.variables) + plan.warmup_epochs)
    ahead = rank.rank == rank.size - 1
    before = 0
    for step, (mine, agreed) in enumerate([(0, 0), (2 if ahead else 1, 1), (2, 2), (9, 3)]):
        reducer.epoch.set(mine)
        reduced = reducer.reduce(tensors_of(rank.rank, step)).gradients
        everyones = rank.all_gather_object([r.numpy().tobytes() for r in reduced], name=f"{name}.c")
        assert all(r == everyones[0] for r in everyones)
        sent = reducer.traffic().sent_bytes - before
        before += sent
        if rank.size > 1:
            expected = plan.stage_bytes[agreed] + 2 * (rank.size - 1) * flags // rank.size
            assert abs(sent - expected) <= rank.size, (step, sent, expected)


def absent_variables_keep_their_state(rank: Collective, name: str) -> None:
    """In every stage, whatever a variable without a gradient has kept stays as it is."""
    warmup = gc.Warmup(TwoPhaseQuantize(bits=4, block_size=32), epochs=1, start="none")
    plan = warm_plan(warmup, rank.size, momentum=True)
    reducer = Reducer(plan, rank, momentum=Momentum(0.9), name=name)
    for stage in (1, 0, 1):
        reducer.epoch.set(1)
        reducer.reduce(tensors_of(rank.rank, stage))
        reducer.epoch.set(stage)
        gradients: list[Any] = tensors_of(rank.rank, 5)
        gradients[2] = None
        before = state_of(reducer, 2)
        others = state_of(reducer, 0)
        reducer.reduce(gradients)
        assert state_of(reducer, 2) == before
        assert state_of(reducer, 0) != others


def state_of(reducer: Reducer, index: int) -> list[bytes]:
    kept = [reducer.velocities[index].numpy()]
    if index in reducer.residuals:
        kept.append(reducer.residuals[index].numpy())
        kept.append(chunk_residual_per_variable(reducer)[index])
    return [values.tobytes() for values in kept]


def momentum_is_that_of_the_oracle(
    rank: Collective, momentum: Momentum, average: bool, compiled: bool, name: str
) -> None:
    """Each step's reduced gradient, u and v are those of algorithm 4 of arXiv:1712.01887.

    One variable is dense, and one step is not finite on one rank and skipped by all.
    """
    codec = gc.TopK(density=0.05, values=gc.Identity())
    plan = warm_plan(None, rank.size, codec, momentum=True)
    dense = 1
    plan = replace(
        plan,
        variables=tuple(
            replace(v, codec=None if v.index == dense else codec) for v in plan.variables
        ),
    )
    reducer = Reducer(plan, rank, average=average, momentum=momentum, name=name)
    reduce = (
        tf.function(lambda g: reducer.reduce(g).gradients, autograph=False) if compiled else None
    )
    oracle = Oracle(momentum, rank.size, average, codec, dense)
    for step in range(5):
        everyones = [gradients_of(r, step) for r in range(rank.size)]
        bad = step == 2
        if bad:
            everyones[-1][2][3, 4] = np.nan
        mine = [tf.constant(g) for g in everyones[rank.rank]]
        reduced = reduce(mine) if reduce else reducer.reduce(mine).gradients
        if bad:
            assert not all(np.isfinite(r.numpy()).all() for r in reduced)
        else:
            for ours, theirs in zip(reduced, oracle.step(everyones), strict=True):
                np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-5, atol=1e-6)
        for i in range(len(SHAPES)):
            close = {"rtol": 1e-5, "atol": 1e-6}
            u, v = oracle.u[rank.rank][i], oracle.v[rank.rank][i]
            np.testing.assert_allclose(reducer.velocities[i].numpy(), u, **close)
            if rank.size > 1 and i != dense:
                np.testing.assert_allclose(reducer.residuals[i].numpy(), v, **close)
    if rank.size > 1:
        zeroed = np.mean(reducer.velocities[0].numpy() == 0)
        assert 0 < zeroed < 0.9, "nothing was zeroed, or all: the test shows nothing"


class Oracle:
    """Deep Gradient Compression of all ranks, in NumPy and float32."""

    def __init__(
        self, momentum: Momentum, size: int, average: bool, codec: gc.TopK, dense: int
    ) -> None:
        self.momentum, self.size, self.average = momentum, size, average
        self.codec, self.dense = codec, dense
        self.u = [[np.zeros(s, np.float32) for s in SHAPES] for _ in range(size)]
        self.v = [[np.zeros(s, np.float32) for s in SHAPES] for _ in range(size)]

    def step(self, gradients: list[list[np.ndarray]]) -> list[np.ndarray]:
        share = 1 / self.size if self.average else 1.0
        total = [np.zeros(s, np.float64) for s in SHAPES]
        for rank, row in enumerate(gradients):
            # Contributions to the reduced gradient are clipped, each by N^−½ of the norm.
            for i, g in enumerate(self._clipped([share * g for g in row])):
                total[i] += self._send(rank, i, (g / share).astype(np.float32)) * share
        return total

    def _clipped(self, row: list[np.ndarray]) -> list[np.ndarray]:
        one, all_ = self.momentum.clipnorm, self.momentum.global_clipnorm
        norms = [np.linalg.norm(g.astype(np.float64).reshape(-1)) for g in row]
        if all_:
            norms = [np.linalg.norm(norms)] * len(row)
        if not one and not all_:
            return row
        allowed = (one or all_) * self.size**-0.5
        return [g * min(1.0, allowed / max(n, 1e-30)) for g, n in zip(row, norms, strict=True)]

    def _send(self, rank: int, i: int, g: np.ndarray) -> np.ndarray:
        m = np.float32(self.momentum.momentum)
        u = m * self.u[rank][i] + g
        self.u[rank][i] = u
        sent = m * u + g if self.momentum.nesterov else u
        if i == self.dense or self.size == 1:
            return sent
        v = self.v[rank][i] + sent
        flat = np.abs(v.reshape(-1))
        kept = np.argsort(-flat, kind="stable")[: self.codec.kept(flat.size)]
        mask = np.zeros(flat.size, bool)
        mask[kept] = True
        mask = mask.reshape(v.shape)
        self.u[rank][i] = np.where(mask, np.float32(0), u)
        self.v[rank][i] = np.where(mask, np.float32(0), v)
        return np.where(mask, v, np.float32(0))


def all_sent_is_plain_sgd_and_none_is_momentum(rank: Collective, name: str) -> None:
    """At density 1 every velocity is zeroed at each step; in a dense stage none ever is.

    Nor is it by a codec that sends something of every element.
    """
    momentum = Momentum(0.9)
    everything = GatheredTopK(density=1.0, values=gc.Identity())
    warmup = gc.Warmup(gc.TopK(density=0.01), epochs=1, start="none")
    all_sent = Reducer(
        warm_plan(None, rank.size, everything, momentum=True), rank, momentum=momentum, name=name
    )
    plain = Reducer(warm_plan(None, rank.size), rank, name=f"{name}.plain")
    dense = Reducer(
        warm_plan(warmup, rank.size, momentum=True), rank, momentum=momentum, name=f"{name}.dense"
    )
    dense.epoch.set(0)
    cast = Reducer(
        warm_plan(None, rank.size, gc.FP16(), momentum=True),
        rank,
        momentum=momentum,
        name=f"{name}.cast",
    )
    velocity, own = ([np.zeros(s, np.float32) for s in SHAPES] for _ in range(2))
    for step in range(4):
        mine = tensors_of(rank.rank, step)
        means = [g.numpy() for g in plain.reduce(mine).gradients]
        velocity = [np.float32(0.9) * v + g for v, g in zip(velocity, means, strict=True)]
        own = [np.float32(0.9) * v + g.numpy() for v, g in zip(own, mine, strict=True)]
        cast.reduce(mine)
        for i, usual in enumerate(own):
            np.testing.assert_allclose(cast.velocities[i].numpy(), usual, rtol=1e-5, atol=1e-5)
        if rank.size > 1:
            for ours, mean in zip(all_sent.reduce(mine).gradients, means, strict=True):
                np.testing.assert_allclose(ours.numpy(), mean, rtol=1e-5, atol=1e-6)
        for ours, usual in zip(dense.reduce(mine).gradients, velocity, strict=True):
            np.testing.assert_allclose(ours.numpy(), usual, rtol=1e-5, atol=1e-5)


def all_checks() -> Iterator[tuple[str, Callable[[Collective, str], Any]]]:
    """(id, check) for everything above; a check takes the rank and a unique name."""
    for told, warmup in WARMUPS.items():
        for average in (True, False):
            yield (
                f"stages_conserve[{told},{'average' if average else 'sum'}]",
                lambda rank, name, w=warmup, a=average: stages_conserve(rank, w, a, name),
            )
    yield "ranks_agree_on_the_stage", ranks_agree_on_the_stage
    yield "absent_variables_keep_their_state", absent_variables_keep_their_state
    for told, momentum in {
        "plain": Momentum(0.9),
        "nesterov": Momentum(0.8, nesterov=True),
        "clipnorm": Momentum(0.9, clipnorm=3.0),
        "global_clipnorm": Momentum(0.9, global_clipnorm=8.0),
    }.items():
        for average in (True, False):
            for compiled in (False, True):
                how = "compiled" if compiled else "eager"
                yield (
                    f"momentum[{told},{'average' if average else 'sum'},{how}]",
                    lambda rank, name, m=momentum, a=average, c=compiled: (
                        momentum_is_that_of_the_oracle(rank, m, a, c, name)
                    ),
                )
    yield "all_sent_is_plain_sgd_and_none_is_momentum", all_sent_is_plain_sgd_and_none_is_momentum
