"""`gc.Auto` under MirroredStrategy and MultiWorkerMirroredStrategy, each of two replicas."""

import pytest
from ranks import values
from scenarios_auto_strategy import SCENARIOS
from strategies import launch_devices, launch_workers


@pytest.fixture(scope="module")
def devices(tmp_path_factory):
    return launch_devices("scenarios_auto_strategy", tmp_path_factory.mktemp("devices"))


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    return launch_workers("scenarios_auto_strategy", 2, tmp_path_factory.mktemp("workers"))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_on_two_devices(devices, scenario) -> None:
    values(devices, scenario, 1)


def test_the_choice_follows_the_link(devices, workers) -> None:
    name = "the_choice_follows_the_link_between_epochs"
    for told in (*values(devices, name, 1), *values(workers, name, 2)):
        fast, slow, again = told
        assert fast == again == ["none"]
        assert slow == ["none", "topk:density=0.01"]


def test_the_hook_chooses_by_the_link(devices) -> None:
    (told,) = values(devices, "the_hook_chooses_when_it_is_first_used", 1)
    assert told == [["none"], ["none", "topk:density=0.01"]]


def test_workers_measure_the_same(workers) -> None:
    told = values(workers, "real_exchanges_are_measured", 2)
    assert told[0] == told[1]
    assert all(figure > 0 for figure in told[0])
