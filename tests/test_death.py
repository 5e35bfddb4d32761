"""A worker that is killed: what the other says, and how training goes on."""

import signal

import pytest
from ranks import TESTS, values
from strategies import launch_workers, run_workers

PROGRAM = str(TESTS / "scenarios_death.py")
KILLED = -signal.SIGKILL
UNAVAILABLE = "tensorflow.python.framework.errors_impl.UnavailableError"
CAUSED = "The above exception was the direct cause of the following exception"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("death")


def run_until_a_death(way, folder, victim) -> str:
    """What the other worker wrote; it has ended by itself, with an error."""
    codes = run_workers([PROGRAM, way, str(folder)], 2, folder)
    assert codes[victim] == KILLED
    assert codes[1 - victim] == 1
    return (folder / f"worker{1 - victim}.log").read_text()


@pytest.fixture(scope="module")
def fit(folder):
    return run_until_a_death("fit", folder, victim=1)


@pytest.fixture(scope="module")
def loop(folder):
    return run_until_a_death("loop", folder, victim=0)


@pytest.fixture(scope="module")
def resumed(fit, loop, folder):
    return launch_workers("scenarios_death", 2, folder)


@pytest.mark.parametrize("way", ["fit", "loop"])
def test_the_survivor_says_what_happened_and_what_to_do(way, request) -> None:
    told = request.getfixturevalue(way)
    cause, error = told.rindex(UNAVAILABLE), told.rindex("gradcomp.errors.WorkerLostError: ")
    assert cause < told.rindex(CAUSED) < error
    for text in ("another worker has died", "start all workers again", "resume from"):
        assert text in told[error:]


def test_a_loop_of_ones_own_is_told_by_tensorflow_first(loop) -> None:
    told = loop[loop.index("the step says: ") :].splitlines()[0]
    assert "Collective ops is aborted by" in told


def test_backup_and_restore_goes_on_bit_for_bit(resumed) -> None:
    for worker in values(resumed, "backup_and_restore_goes_on_bit_for_bit", 2):
        assert worker["epochs"] == [2, 3]
        assert all(worker["restored"])
        assert worker["resumed"] == worker["undisturbed"]


def test_saved_state_of_fit_goes_on_bit_for_bit(resumed) -> None:
    ours = values(resumed, "saved_state_of_fit_goes_on_bit_for_bit", 2)
    theirs = values(resumed, "backup_and_restore_goes_on_bit_for_bit", 2)
    for worker, other in zip(ours, theirs, strict=True):
        assert worker["done"] == 9
        assert worker["resumed"] == other["undisturbed"]


def test_checkpoints_and_saved_state_go_on_bit_for_bit_in_a_loop(resumed) -> None:
    for worker in values(resumed, "both_ways_of_a_loop_go_on_bit_for_bit", 2):
        assert worker["done"] == [6, 6]
        assert all(worker["restored"])
        assert worker["checkpoint"] == worker["undisturbed"]
        assert worker["state"] == worker["undisturbed"]


def test_each_worker_gets_its_own_residuals_and_statistics(resumed) -> None:
    first, second = values(resumed, "backup_and_restore_goes_on_bit_for_bit", 2)
    assert first["resumed"]["residuals"] != second["resumed"]["residuals"]
    assert first["resumed"]["variables"] != second["resumed"]["variables"]


def test_residuals_newer_than_weights_are_told(resumed) -> None:
    for worker in values(resumed, "backup_and_restore_goes_on_bit_for_bit", 2):
        (told,) = worker["warned"]
        assert "epoch 1 after 1 updates, 16 exchanges" in told


def test_backups_of_different_epochs_are_never_mixed(resumed) -> None:
    first, second = values(resumed, "backups_of_different_epochs_are_refused", 2)
    assert first == second
    assert "worker 0: epoch 3 after 8 updates" in first
    assert "worker 1: epoch 2 after 4 updates" in first
