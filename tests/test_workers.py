"""MultiWorkerMirroredStrategy, on two and on four real processes."""

import pytest
from ranks import values
from strategies import launch_workers

SCENARIOS = [
    "loops",
    "the_report_and_the_engine",
    "accumulation_overwriting_and_clipping",
    "fit_says_what_is_missing",
    "fit_evaluate_and_predict",
    "state_of_all_workers_goes_on_bit_for_bit",
    "one_worker_overflows",
    "disagreement_is_told_on_all",
]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return launch_workers("scenarios_workers", 2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return launch_workers("scenarios_workers", 4, tmp_path_factory.mktemp("four"))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_on_two_workers(two, scenario) -> None:
    values(two, scenario, 2)


@pytest.mark.parametrize("scenario", SCENARIOS[:3])
def test_scenario_on_four_workers(four, scenario) -> None:
    values(four, scenario, 4)


@pytest.mark.parametrize("workers", [2, 4])
def test_with_gpu_kernels_gradients_and_payloads_stay_on_the_gpu(request, workers) -> None:
    launched = request.getfixturevalue({2: "two", 4: "four"}[workers])
    two_phases = {"GradcompReduce", "CollectiveAllToAllV2"} if workers == 4 else set()
    ops = {"GradcompEncode", "GradcompDecode", "CollectiveGatherV2"}
    for topk, quantized in values(launched, "gradients_stay_on_the_gpu", workers):
        assert topk == ({(op, "GPU:0") for op in ops}, set(), set())
        assert quantized == ({(op, "GPU:0") for op in ops | two_phases}, set(), set())


def test_a_death_is_told_to_all_others(four) -> None:
    for text, cause in values(four, "a_death_is_told_to_all_others", 3):
        assert "another worker has died" in text and "start all workers again" in text
        assert cause == "UnavailableError"


def test_a_worker_that_stays_away_is_told(two) -> None:
    waited, stayed_away = values(two, "a_worker_that_stays_away_is_told", 2)
    assert stayed_away is None
    assert "no longer takes part" in waited
    assert "DeadlineExceededError: Collective has timed out" in waited


def test_routes(two, four) -> None:
    assert values(two, "loops", 2)[0] == ["all_gather"] * 3
    assert values(four, "loops", 4)[0] == ["all_gather", "two_phase", "two_phase"]


def test_the_engine_is_named_once(two, four) -> None:
    for workers, outcomes in ((2, two), (4, four)):
        size = f"{workers} replicas on {workers} workers"
        line = f"the engine is MultiWorkerMirroredStrategy with {size}: gradients are exchanged"
        assert values(outcomes, "the_report_and_the_engine", workers) == [[line]] * workers


def test_what_is_missing_is_named(two) -> None:
    for told in values(two, "fit_says_what_is_missing", 2):
        assert "gc.prepare(model)" in told


def test_an_overflow_on_one_worker_skips_one_step(two) -> None:
    assert values(two, "one_worker_overflows", 2) == [(3, 2.0**14)] * 2


def test_a_disagreement_is_the_same_on_all(two) -> None:
    first, second = values(two, "disagreement_is_told_on_all", 2)
    assert first == second
    assert "quantize:bits=4" in first and "quantize:bits=8" in first
