"""DESIGN's invariants on ranks that are threads of this process."""

import pytest
from invariants import all_checks, disagreement, make_plan

import gradcomp as gc
from gradcomp.collective import LocalCollective

pytestmark = pytest.mark.filterwarnings("ignore:there is one process only")

CHECKS = dict(all_checks())


# Every pair of codec, average and bad value on few ranks; on many, codecs take turns.
RUNS = [(check, size) for size in (1, 2, 3) for check in CHECKS]
RUNS += [(check, 7) for check, _ in all_checks(in_turn=True)]


@pytest.mark.parametrize(("check", "size"), RUNS)
def test_invariant(check: str, size: int) -> None:
    LocalCollective(size).run(lambda rank: CHECKS[check](rank, "test"))


def test_first_failure_is_raised_and_releases_the_others() -> None:
    def work(rank):
        if rank.rank == 1:
            raise KeyError("rank 1 broke")
        return rank.all_gather_object(0, name="x")

    with pytest.raises(KeyError, match="rank 1 broke"):
        LocalCollective(3).run(work)


def test_different_collectives_at_once_are_noticed() -> None:
    with pytest.raises(RuntimeError, match="different collectives"):
        LocalCollective(2).run(lambda rank: rank.all_gather_object(0, name=f"op{rank.rank}"))


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (lambda: make_plan(gc.Quantize(bits=4), 3), "codec of variable 0"),
        (lambda: make_plan(gc.TopK(0.01), 3, bucket_bytes=5), "bucket_bytes"),
        (lambda: make_plan(None, 3), "codec of variable 0"),
    ],
)
def test_disagreement_is_told_alike_on_all_ranks(other, told) -> None:
    messages = LocalCollective(3).run(
        lambda rank: disagreement(
            rank, lambda r: other() if r == 1 else make_plan(gc.TopK(0.01), 3), "test"
        )
    )
    assert told in messages[0]
    assert "rank 1" in messages[0]
    assert "ranks 0, 2" in messages[0]
