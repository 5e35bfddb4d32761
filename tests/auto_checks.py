"""What holds whatever an `Auto` chooses, each a function that one rank runs; they assert on all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from invariants import SHAPES, contribution, make_plan, tensors_of

import gradcomp as gc
from gradcomp import residuals
from gradcomp.chooser import FIRST_LOOK, Chooser
from gradcomp.collective import Collective
from gradcomp.cost import Link
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
        super().__init__(plan, rank, rank, name)
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


def books_balance_while_the_choice_changes(
    rank: Collective,
    average: bool,
    name: str,
    wrap: Wrap = lambda function: function,
    bucket_bytes: int = 12_000,
) -> None:
    """Σ applied + Σ residuals = Σ gradients, through every change, and at last nothing waits."""
    plan = make_plan(AUTO, rank.size, bucket_bytes)
    ways = max(map(len, plan.alternatives))
    chooser = Scripted(plan, rank, name, script(ways))
    reducer = Reducer(plan, rank, average=average, chooser=chooser, name=name)
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
    assert {b.route for b in reducer.plan.buckets} == {"dense"}


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


def what_was_restored_is_sent(rank: Collective, name: str) -> None:
    """Residuals of two phases go to a reducer that has chosen to encode nothing, or one phase."""
    plan = make_plan(AUTO, rank.size)
    routes = [bucket.route for bucket in plan.alternatives[0]]
    lossy = routes.index("two_phase" if "two_phase" in routes else "all_gather")
    before = Reducer(plan, rank, chooser=Scripted(plan, rank, name, [lossy]), name=f"{name}.before")
    mine = tensors_of(rank.rank, 0)
    for _ in range(2):
        before.reduce(mine)
    kept = contribution(before)
    assert any(c.any() for c in kept)
    everyones = rank.all_gather_object(kept, name=f"{name}.kept")
    owed = [sum(one) for one in zip(*everyones, strict=True)]
    for number in (0, routes.index("all_gather")):
        after = Reducer(
            plan, rank, chooser=Scripted(plan, rank, name, [number]), name=f"{name}.{number}"
        )
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


def all_checks() -> Iterator[tuple[str, Callable[[Collective, str], Any]]]:
    """(id, check); a check takes the rank and a unique name."""
    for average in (True, False):
        yield (
            f"books[{'average' if average else 'sum'}]",
            lambda rank, name, a=average: books_balance_while_the_choice_changes(rank, a, name),
        )
    yield "restored", what_was_restored_is_sent
    yield "alike", ranks_decide_alike_though_they_measure_different_things
