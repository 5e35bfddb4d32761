"""What holds whatever an `Auto` chooses, each a function that one rank runs; they assert on all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from invariants import (
    SHAPES,
    contribution,
    gradients_of,
    levels_of,
    make_plan,
    on_hosts,
    tensors_of,
)
from warmup_checks import Oracle

import gradcomp as gc
from gradcomp import residuals
from gradcomp.chooser import FIRST_LOOK, Chooser
from gradcomp.codecs import Codec
from gradcomp.collective import Collective
from gradcomp.cost import Link
from gradcomp.momentum import Momentum
from gradcomp.plan import Plan
from gradcomp.reducer import Reducer

AUTO = gc.Auto(
    candidates=("fp16", "quantize:bits=4,block_size=32", "sign:block_size=96", "topk:density=0.05")
)
STEPS = 24
Wrap = Callable[[Any], Any]


class Scripted(Chooser):
    """Looks at every step, and takes what a script says; it measures nothing."""

    def __init__(self, plan: Plan, rank: Collective, name: str, script: list[int]) -> None:
        self.script, self.looks = script, 0
        levels = levels_of(rank)
        super().__init__(plan, rank, rank if levels is None else levels.cross, name)
        self.interval = 0

    def _linked(self, large: int) -> Link:
        return Link(1e9, 1e-3)

    def look(self) -> bool:
        self.looks += 1
        self.numbers = self._chosen(self.numbers)
        return True

    def _chosen(self, before: tuple[int, ...] | None) -> tuple[int, ...]:
        """Every bucket at another place of the script."""
        ways = self._plan.alternatives
        at = [self.script[(self.looks + i) % len(self.script)] for i in range(len(ways))]
        return tuple(number % len(w) for number, w in zip(at, ways, strict=True))


def script(ways: int) -> list[int]:
    """Every change from one way to another, and to itself."""
    pairs = [(a, b) for a in range(ways) for b in range(ways)]
    order = np.random.default_rng(0).permutation(len(pairs))
    return [number for i in order for number in pairs[i]]


def auto_plan(rank: Collective, bucket_bytes: int = 12_000, beside: Codec | None = None) -> Plan:
    """Of `AUTO`, and of one variable that warms up to `beside`, where that is given."""
    plan = on_hosts(make_plan(AUTO, rank.size, bucket_bytes), rank)
    if beside is None:
        return plan
    variables = list(plan.variables)
    variables[0] = replace(variables[0], codec=beside, warmup=(None,))
    return replace(plan, variables=tuple(variables))


def books_balance_while_the_choice_changes(
    rank: Collective,
    average: bool,
    name: str,
    wrap: Wrap = lambda function: function,
    bucket_bytes: int = 12_000,
    beside: Codec | None = None,
) -> None:
    """Σ applied + Σ residuals = Σ gradients, through every change, and at last nothing waits.

    Also of a variable `beside`, whose stage of a warm-up changes meanwhile.
    """
    plan = auto_plan(rank, bucket_bytes, beside)
    ways = max(map(len, plan.alternatives))
    chooser = Scripted(plan, rank, name, script(ways))
    reducer = Reducer(
        plan, rank, average=average, chooser=chooser, levels=levels_of(rank), name=name
    )
    reduce = wrap(reducer.reduce)
    applied = [np.zeros(s, np.float64) for s in SHAPES]
    given = [np.zeros(s, np.float64) for s in SHAPES]
    taken: set[tuple[int, ...]] = set()
    share = 1 / rank.size if average else 1.0

    def balance(step: int) -> None:
        everyones = rank.all_gather_object((given, contribution(reducer)), name=f"{name}.check")
        for i in range(len(SHAPES)):
            expected = share * sum(g[i] for g, _ in everyones)
            waiting = sum(c[i] for _, c in everyones)
            np.testing.assert_allclose(applied[i] + waiting, expected, rtol=0, atol=2e-4)

    for step in range(STEPS):
        reducer.epoch.set(step // 3 % 2)
        gradients: list[Any] = tensors_of(rank.rank, step)
        if step % 7 == 3:
            gradients[2] = None  # on all ranks
        if step % 7 == 5:
            bad = gradients[2].numpy() * (np.nan if rank.rank == 1 else 1)
            gradients[2] = tf.constant(bad)
        reduced, present = reduce(gradients)
        finite = all(np.isfinite(r.numpy()).all() for r in reduced)
        assert finite == (step % 7 != 5)
        for i, gradient in enumerate(gradients if finite else ()):
            given[i] += 0 if gradient is None else gradient.numpy()
            applied[i] += reduced[i].numpy() if present[i] else 0
        taken.add(reducer.plan.chosen)
        balance(step)
    assert len(taken) >= 5
    # Uncompressed from now on: what waits is sent once, and then gradients are what they are.
    chooser.script = [0]
    reducer.epoch.set(0)
    for step in range(2):
        gradients = tensors_of(rank.rank, STEPS + step)
        reduced, _ = reduce(gradients)
        for i, gradient in enumerate(gradients):
            given[i] += gradient.numpy()
            applied[i] += reduced[i].numpy()
    balance(STEPS)
    assert not any(c.any() for c in contribution(reducer))
    if rank.size == 2:  # there is one order only in which two can be added
        total = rank.all_reduce(gradients, average=average, name=f"{name}.plain")
        for ours, plain in zip(reduced, total, strict=True):
            assert ours.numpy().tobytes() == plain.numpy().tobytes()
    assert not any(reducer.plan.chosen)


def a_graph_is_traced_once(rank: Collective, name: str) -> None:
    """The books of a compiled step, whose choice changes without a new trace."""
    traces = []

    def wrap(reduce: Any) -> Any:
        compiled = {}

        def step(gradients: list[Any]) -> Any:
            used = tuple(g is not None for g in gradients)
            if used not in compiled:

                @tf.function(autograph=False)
                def graph(*given: Any, used: tuple[bool, ...] = used) -> Any:
                    traces.append(used)
                    rest = iter(given)
                    reduction = reduce([next(rest) if one else None for one in used])
                    return reduction.gradients, reduction.present

                compiled[used] = graph
            return compiled[used](*(g for g in gradients if g is not None))

        return step

    # One bucket: the more there are, the longer it compiles.
    books_balance_while_the_choice_changes(rank, True, name, wrap, bucket_bytes=1 << 20)
    assert len(traces) == len(set(traces)) == 2


def reducer_that_chose(rank: Collective, number: int, name: str, **options: Any) -> Reducer:
    """One whose choice never changes."""
    plan = auto_plan(rank)
    chooser = Scripted(plan, rank, name, [number])
    return Reducer(plan, rank, chooser=chooser, levels=levels_of(rank), name=name, **options)


def lossy_of(routes: Sequence[str]) -> int:
    """The number of an alternative that keeps as much as any does."""
    return routes.index("two_phase" if "two_phase" in routes else "all_gather")


def what_was_restored_is_sent(rank: Collective, name: str) -> None:
    """Residuals of two phases go to a reducer that has chosen to encode nothing, or one phase."""
    routes = [bucket.route for bucket in auto_plan(rank).alternatives[0]]
    before = reducer_that_chose(rank, lossy_of(routes), f"{name}.before")
    mine = tensors_of(rank.rank, 0)
    for _ in range(2):
        before.reduce(mine)
    kept = contribution(before)
    assert any(c.any() for c in kept) == (before.keeper is not None)
    everyones = rank.all_gather_object(kept, name=f"{name}.kept")
    owed = [sum(one) for one in zip(*everyones, strict=True)]
    for number in (0, routes.index("all_gather")):
        after = reducer_that_chose(rank, number, f"{name}.{number}")
        residuals.restore(after, {rank.rank: residuals.take(before)}, each_its_own=True)
        zeros = [tf.zeros(shape) for shape in SHAPES]
        reduced, _ = after.reduce(zeros)
        left = rank.all_gather_object(contribution(after), name=f"{name}.left{number}")
        for i, total in enumerate(owed):
            waiting = sum(c[i] for c in left)
            np.testing.assert_allclose(reduced[i].numpy() + waiting, total, rtol=0, atol=1e-4)
            if number == 0:
                assert not waiting.any()
        assert not any(chunk.numpy().any() for chunk in after.chunk_residuals.values())


def measuring_a_link_takes_a_fifth_of_a_second_at_most(rank: Collective, name: str) -> None:
    """Of 100 Mbit/s and more, in what its exchanges need at that rate; and it finds the rate."""
    spent = []

    def exchange_time(payload: int, *, name: str) -> float:
        rank.all_gather_object(None, name=name)
        spent.append((rank.size - 1) * (latency + payload / rate))
        return spent[-1]

    rank.exchange_time = exchange_time
    plan = auto_plan(rank, beside=gc.TopK(density=0.02))  # which no candidate is
    for rate, latency in ((12.5e6, 1e-3), (125e6, 5e-4), (1.25e9, 2e-4), (3.1e9, 1e-4)):
        spent.clear()
        chooser = Chooser(plan, rank, rank, f"{name}.{rate:.0f}")
        assert chooser.numbers[[len(ways) for ways in plan.alternatives].index(1)] == 0
        link = chooser._link
        assert 0 < sum(spent) < 0.2
        assert link.bandwidth == pytest.approx(rate, rel=0.01)
        assert link.latency == pytest.approx(latency, rel=0.1)


def ranks_decide_alike_though_they_measure_different_things(rank: Collective, name: str) -> None:
    """The slowest rank's link decides, in a choice and in each later one."""
    rates = {"now": 1e8}

    def exchange_time(payload: int, *, name: str) -> float:
        rank.all_gather_object(name, name=name)
        own = rates["now"] * (1 + rank.rank)  # the first rank's is the slowest
        return 1e-4 * (rank.size - 1) + (rank.size - 1) * payload / own

    rank.exchange_time = exchange_time
    plan = make_plan(gc.Auto(max_error=1.0), rank.size)
    chooser = Chooser(plan, rank, rank, name)
    fast = chooser.numbers
    assert not chooser.look()
    assert (chooser.numbers, chooser.interval) == (fast, 2 * FIRST_LOOK)
    rates["now"] = 1e4
    assert chooser.look()
    slow = chooser.numbers
    assert chooser.interval == FIRST_LOOK
    sizes = [layout.raw_bytes for layout in plan.layouts]
    assert slow[sizes.index(max(sizes))] > 0
    assert chooser._link.bandwidth == pytest.approx(1e4, rel=0.01)
    rates["now"] = 1e12
    assert chooser.look()
    told = rank.all_gather_object((fast, slow, chooser.numbers), name=f"{name}.told")
    assert all(one == told[0] for one in told)
    assert not any(chooser.numbers)


class _Switching(Oracle):
    """The oracle of momentum correction, where a step may be uncompressed."""

    uncompressed = False

    def _send(self, rank: int, i: int, g: np.ndarray) -> np.ndarray:
        if not self.uncompressed:
            return super()._send(rank, i, g)
        u = np.float32(self.momentum.momentum) * self.u[rank][i] + g
        whole = self.v[rank][i] + u
        self.u[rank][i], self.v[rank][i] = u, np.zeros_like(u)
        return whole


def momentum_is_corrected_while_the_choice_changes(rank: Collective, name: str) -> None:
    """Local clipping and velocities are those of the paper where top-k is chosen.

    Where nothing is, what waits is sent once, and velocities are those of plain momentum.
    """
    codec, momentum = gc.TopK(density=0.05, values=gc.Identity()), Momentum(0.9, clipnorm=3.0)
    plan = make_plan(gc.Auto(candidates=[codec]), rank.size, bucket_bytes=1 << 20)
    plan = replace(plan, momentum=True)
    ways = [0, 1, 1, 0, 0, 1]
    chooser = Scripted(plan, rank, name, ways)
    reducer = Reducer(plan, rank, momentum=momentum, chooser=chooser, name=name)
    oracle = _Switching(momentum, rank.size, True, codec, dense=-1)
    for step in range(len(ways)):
        reduced = reducer.reduce(tensors_of(rank.rank, step)).gradients
        oracle.uncompressed = reducer.plan.chosen == (0,)
        assert oracle.uncompressed == (ways[(step + 1) % len(ways)] == 0)  # it looks, then acts
        expected = oracle.step([gradients_of(r, step) for r in range(rank.size)])
        for i, (ours, theirs) in enumerate(zip(reduced, expected, strict=True)):
            close = {"rtol": 1e-5, "atol": 1e-5}
            np.testing.assert_allclose(ours.numpy(), theirs, **close)
            u, v = oracle.u[rank.rank][i], oracle.v[rank.rank][i]
            np.testing.assert_allclose(reducer.velocities[i].numpy(), u, **close)
            np.testing.assert_allclose(reducer.residuals[i].numpy(), v, **close)


def all_checks() -> Iterator[tuple[str, Callable[[Collective, str], Any]]]:
    """(id, check); a check takes the rank and a unique name."""
    for average in (True, False):
        yield (
            f"books[{'average' if average else 'sum'}]",
            lambda rank, name, a=average: books_balance_while_the_choice_changes(rank, a, name),
        )
    yield (
        "books[beside a warm-up]",
        lambda rank, name: books_balance_while_the_choice_changes(
            rank, True, name, beside=gc.TopK(density=0.05)
        ),
    )
    yield "momentum", momentum_is_corrected_while_the_choice_changes
    yield "restored", what_was_restored_is_sent
    yield "soon", measuring_a_link_takes_a_fifth_of_a_second_at_most
    yield "alike", ranks_decide_alike_though_they_measure_different_things
