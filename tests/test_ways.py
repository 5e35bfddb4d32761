"""`gc.Auto`: what it allows, what it decides, and that nothing is lost when that changes."""

import numpy as np
import pytest
import tensorflow as tf
from auto_checks import all_checks, auto_plan, lossy_of, reducer_that_chose
from hosts import run_on_hosts
from invariants import SHAPES, contribution, tensors_of

from gradcomp import residuals
from gradcomp.collective import LocalCollective, LocalRank
from gradcomp.handover import hand_over
from gradcomp.residuals import Snapshot

pytestmark = pytest.mark.filterwarnings("ignore:there is one process only")

CHECKS = dict(all_checks())
# Those that choose for a link between hosts; momentum correction refuses hosts.
ON_HOSTS = [name for name in CHECKS if name.startswith("books") or name == "restored"]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("check", CHECKS)
def test_on_ranks_that_are_threads(check: str, size: int) -> None:
    LocalCollective(size).run(lambda rank: CHECKS[check](rank, "test"))


@pytest.mark.parametrize("check", ON_HOSTS)
def test_on_hosts(check: str) -> None:
    """Three leaders, so that there are two phases, and a rank that keeps nothing."""
    run_on_hosts((2, 1, 1), lambda rank: CHECKS[check](rank, "test"))


@pytest.mark.parametrize("left", [(0, 2), (2,), (2, None, 1)], ids=str)
@pytest.mark.parametrize("lossy", [False, True])
def test_ranks_that_are_left_choose_anew_and_send_what_they_keep(left, lossy) -> None:
    """Of three, in two phases; where None stands, one that has just come."""

    def before(rank: LocalRank) -> tuple[Snapshot, list[np.ndarray]]:
        number = lossy_of([bucket.route for bucket in auto_plan(rank).alternatives[0]])
        reducer = reducer_that_chose(rank, number, "before", average=False)
        reducer.reduce(tensors_of(rank.rank, 0))
        assert any(second.numpy().any() for second in reducer.chunk_residuals.values())
        return residuals.take(reducer), contribution(reducer)

    kept = LocalCollective(3).run(before)
    survivors = [kept[old] for old in left if old is not None]
    owed = [sum(one) for one in zip(*(theirs for _, theirs in survivors), strict=True)]

    def after(rank: LocalRank) -> tuple[list[np.ndarray], list[np.ndarray]]:
        reducer = reducer_that_chose(rank, int(lossy and rank.size > 1), "after", average=False)
        old = left[rank.rank]
        hand_over(reducer, None if old is None else kept[old][0])
        reduced = reducer.reduce([tf.zeros(shape) for shape in SHAPES]).gradients
        return [r.numpy() for r in reduced], contribution(reducer)

    told = LocalCollective(len(left)).run(after)
    for i, total in enumerate(owed):
        waiting = sum(theirs[i] for _, theirs in told)
        np.testing.assert_allclose(told[0][0][i] + waiting, total, rtol=0, atol=1e-5)
        assert lossy or not waiting.any()
        assert all(np.array_equal(told[0][0][i], theirs[i]) for theirs, _ in told)
