"""Callbacks, broadcasts and checks of synchrony on two real Horovod processes."""

import pytest
from ranks import launch, values
from scenarios_callbacks import SCENARIOS

import gradcomp as gc

RANKS = 2


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return launch("scenarios_callbacks", RANKS, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(outcomes, scenario) -> None:
    values(outcomes, scenario, RANKS)


def test_broadcasts_that_do_not_fit_are_the_same_error_everywhere(outcomes) -> None:
    first, second = values(outcomes, "broadcasts_of_different_variables_are_refused", RANKS)
    assert first == second
    assert "float32 [3, 2] on rank 0, float32 [2, 3] on rank 1" in first[0]
    assert "[1, 2]" in first[1]


def test_a_missing_metric_is_the_same_error_everywhere(outcomes) -> None:
    first, second = values(outcomes, "missing_metrics_are_told_on_all_ranks", RANKS)
    assert first == second
    assert "'val_loss' is missing on ranks [1]" in first


def test_different_weights_are_the_same_error_everywhere(outcomes) -> None:
    first, second = values(outcomes, "equal_weights_pass_and_others_are_named", RANKS)
    assert first == second
    assert first.startswith("2 of 6 weights differ")
    assert "float32 [20, 64]" in first
    assert "rank 0 and rank 1 have different values" in first
    assert "kernel" in first


def test_checks_come_every_so_many_steps(outcomes) -> None:
    for steps in values(outcomes, "check_sync_stops_training_in_time", RANKS):
        assert steps == [8, 6]  # with two steps an execution, 5 executions are 10 steps


def test_join_says_what_to_write(outcomes) -> None:
    for told in values(outcomes, "join_is_refused", RANKS):
        assert "drop_remainder=True" in told


def test_check_sync_needs_an_engine(monkeypatch) -> None:

    from gradcomp import live

    monkeypatch.setattr(live, "_world", lambda ranks: None)
    with pytest.raises(RuntimeError, match=r"hvd\.init"):
        gc.check_sync([])
