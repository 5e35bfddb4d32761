"""Ranks come and go: what the survivors' residuals add to gradients to come stays the same."""

import numpy as np
import pytest
from invariants import SHAPES, make_plan, tensors_of
from test_residuals import CODECS, contribution, train

from gradcomp import residuals
from gradcomp.collective import LocalCollective
from gradcomp.errors import StateError
from gradcomp.handover import hand_over
from gradcomp.reducer import Reducer
from gradcomp.residuals import Held, Snapshot

pytestmark = pytest.mark.filterwarnings("ignore:there is one process only")

# By the new rank the old one, None for a worker that has just come.
CHANGES = {
    "one of three dies": (3, [0, 2]),
    "the first of three dies, and the others change places": (3, [2, 1]),
    "one of three is replaced": (3, [None, 0, 1]),
    "a third comes": (2, [0, 1, None]),
    "two of four die": (4, [3, 1]),
    "one of three is left, and one comes": (3, [1, None]),
    "all but one die": (3, [1]),
    "nobody changes": (3, [0, 1, 2]),
}


def handed(size: int, kept: list[Snapshot | None], codec, average: bool) -> list[Reducer]:
    def work(rank) -> Reducer:
        reducer = Reducer(make_plan(codec, size), rank, average=average, seed=5, name="next")
        hand_over(reducer, kept[rank.rank])
        return reducer

    return LocalCollective(size).run(work)


@pytest.mark.parametrize("average", [True, False], ids=["average", "sum"])
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize(("old_size", "old_ranks"), CHANGES.values(), ids=CHANGES)
def test_survivors_contribution_is_kept(old_size, old_ranks, codec, average) -> None:
    before, _ = train(old_size, codec, average)
    here = [None if old is None else residuals.take(before[old]) for old in old_ranks]
    after = handed(len(old_ranks), here, codec, average)
    expected = survivors_contribution(before, {old for old in old_ranks if old is not None})
    assert all(e.any() for e in expected if e.size > 5)
    for a, e in zip(contribution(after), expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-7)
    for reducer, old in zip(after, old_ranks, strict=True):
        assert reducer.step == before[0].step
        own = [*reducer.residuals.values(), *reducer.carried.values()]
        if old is None:
            assert not any(np.any(variable) for variable in own), "another rank's residual"
        else:
            assert any(np.any(variable) for variable in own)


def survivors_contribution(before: list[Reducer], survivors: set[int]) -> list[np.ndarray]:
    """`contribution`, where those that are gone keep zeros."""
    for rank, reducer in enumerate(before):
        if rank not in survivors:
            for variable in [*reducer.residuals.values(), *reducer.chunk_residuals.values()]:
                variable.assign(0 * variable)
    return contribution(before)


def test_the_same_ranks_keep_every_bit_and_go_on_alike() -> None:
    codec = CODECS["two-phase"]
    before, _ = train(3, codec, True)
    after = handed(3, [residuals.take(reducer) for reducer in before], codec, True)

    def step(reducers: list[Reducer]) -> list[bytes]:
        def work(rank) -> bytes:
            reducer = reducers[rank.rank]
            reducer._collective = rank
            reduced = reducer.reduce(tensors_of(rank.rank, 99)).gradients
            return b"".join(g.numpy().tobytes() for g in reduced)

        return LocalCollective(3).run(work)

    assert step(after) == step(before)


def test_new_ranks_alone_start_empty() -> None:
    after = handed(2, [None, None], CODECS["top-k"], True)
    assert not any(c.any() for c in contribution(after))
    assert all(reducer.step == 0 for reducer in after)


def test_other_variables_and_operations_are_refused() -> None:
    before, _ = train(2, CODECS["top-k"], True)
    with pytest.raises(StateError, match="op=Average and now has op=Sum"):
        handed(2, [residuals.take(r) for r in before], CODECS["top-k"], False)


def test_residuals_are_scaled_by_what_each_survivor_knows_of_the_ranks_before() -> None:
    """One may have been handed over its part among ranks that were never complete."""
    shape = SHAPES[0]
    kept = []
    for size, value in ((2, 1.0), (4, 2.0)):
        reducers, _ = train(2, CODECS["top-k"], True)
        snapshot = residuals.take(reducers[0])
        description = {**snapshot.description, "world_size": size}
        arrays = Held({"residual/0": np.full(shape, value, np.float32)})
        kept.append(Snapshot(description, arrays, ""))
    after = handed(2, kept, CODECS["top-k"], True)
    assert np.all(after[0].residuals[0] == 1.0)
    assert np.all(after[1].residuals[0] == 1.0)
