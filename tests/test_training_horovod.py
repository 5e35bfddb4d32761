"""Training over two real Horovod processes, and what is reported of it."""

import pytest
from ranks import launch, values
from scenarios_report import SCENARIOS

RANKS = 2


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return launch("scenarios_report", RANKS, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(outcomes, scenario) -> None:
    values(outcomes, scenario, RANKS)


def test_every_codec_trains_and_sends_what_its_plan_says(outcomes) -> None:
    first, second = values(outcomes, "fit_with_every_codec", RANKS)
    for spec, told in first.items():
        assert told["losses"][-1] < 0.8 * told["losses"][0], spec
        assert told["sent"] + second[spec]["sent"] == 2 * told["planned"], spec
        if spec in ("none", "identity"):
            assert told["sent"] == told["raw"] + told["flags"]
            assert told["losses"] == first["none"]["losses"]
        else:
            assert told["ratio"] > 1.5, spec


def test_names_are_unique_and_equal_on_all_ranks(outcomes) -> None:
    first, second = values(outcomes, "two_optimizers_in_one_program", RANKS)
    assert first == second
    assert len(set(first)) == len(first) >= 4
    assert all(name.startswith("gradcomp.optimizer") for name in first)


def test_disagreement_is_the_same_error_everywhere(outcomes) -> None:
    first, second = values(outcomes, "disagreement_is_raised_in_build", RANKS)
    assert first == second
    assert "codec of variable 0" in first
    assert "quantize:bits=4 on rank 1" in first
    assert "topk:density=0.01 on rank 0" in first


def test_the_engine_is_named_once(outcomes) -> None:
    line = "the engine is Horovod with 2 ranks: gradients are exchanged"
    assert values(outcomes, "the_engine_is_named_once", RANKS) == [[line]] * RANKS


def test_every_rank_prints_the_same_report(outcomes) -> None:
    first, second = values(outcomes, "a_report_after_fit", RANKS)
    assert first == second
    assert "Horovod with 2 ranks" in first
