"""DESIGN's invariants on three real Horovod processes."""

import pytest
from ranks import launch, values
from scenarios_invariants import CHECKS

RANKS = 3


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return launch("scenarios_invariants", RANKS, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("check", CHECKS)
def test_invariant(outcomes, check) -> None:
    values(outcomes, check, RANKS)


def test_slices_in_graphs(outcomes) -> None:
    values(outcomes, "sparse_in_graphs", RANKS)


def test_disagreement_is_told_alike_on_all_ranks(outcomes) -> None:
    messages = values(outcomes, "disagreement", RANKS)
    assert len(set(messages)) == 1
    assert "codec of variable 0 (layer_0/kernel)" in messages[0]
    assert "quantize:bits=4 on rank 1" in messages[0]
