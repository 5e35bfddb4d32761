"""Residuals outlive processes: checkpoints, and jobs killed at any time, on real ranks."""

from pathlib import Path

import pytest
from ranks import launch, values
from scenarios_resume import EVERY, KILLED_AFTER
from scenarios_state import SCENARIOS

from gradcomp.generations import Member, list_members

RANKS = 2


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return launch("scenarios_state", RANKS, folder, env={"STATE_FOLDER": str(folder)})


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(outcomes, scenario) -> None:
    values(outcomes, scenario, RANKS)


@pytest.mark.parametrize(
    "scenario",
    [
        "a_checkpoint_of_one_rank_leaves_the_others_at_zero",
        "a_keras_file_of_one_rank_leaves_the_others_at_zero",
    ],
)
def test_one_ranks_file_warns_on_the_others(outcomes, scenario) -> None:
    first, second = values(outcomes, scenario, RANKS)
    assert first == []
    assert len(second) == 1
    assert "of rank 0 of 2, and this is rank 1 of 2, which starts with none" in second[0]
    assert "save_state" in second[0]


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """A job that is killed while it trains, resumed, killed while it saves, and resumed again."""
    folder = tmp_path_factory.mktemp("resume")

    def run(name: str, when: str) -> dict:
        (folder / name).mkdir()
        env = {"RESUME_FOLDER": str(folder), "RESUME_KILL": when}
        return launch("scenarios_resume", RANKS, folder / name, env)

    for name, when in (("first", "training"), ("second", "saving")):
        with pytest.raises(AssertionError, match="no rank came to a result"):
            run(name, when)
        for rank in range(RANKS):
            assert (folder / f"{when}{rank}").exists(), f"rank {rank} was not killed"
        check_killed(folder / "state", when)
    return values(run("third", ""), "resume", RANKS)


def check_killed(folder: Path, when: str) -> None:
    whole = {(g, rank) for g in (1, 2) for rank in range(RANKS)}
    cut = Member(3, 1, RANKS).name
    if when == "saving":
        whole.add((3, 0))
        assert (folder / f"{cut}.tmp").stat().st_size > 0
    assert {(m.generation, m.rank) for m in list_members(folder)} == whole


def test_killed_in_training_and_in_a_save_it_goes_on_bit_for_bit(resumed) -> None:
    for told in resumed:
        assert told["done"] == KILLED_AFTER // EVERY * EVERY
        assert told["nonzero"], "residuals were empty: the test shows nothing"
        assert told["resumed"] == told["uninterrupted"]


def test_the_cut_generation_is_passed_over_with_a_warning_on_all_ranks(resumed) -> None:
    for told in resumed:
        (warning,) = told["warnings"]
        assert "generation 3" in warning
        assert "rank 1" in warning


def test_without_the_residuals_it_would_go_on_differently(resumed) -> None:
    for told in resumed:
        for what in ("weights", "residuals"):
            assert told["zeroed"][what] != told["uninterrupted"][what]
