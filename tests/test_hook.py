"""`gc.CompressedAllReduce`, on two logical CPU devices."""

import pytest
from ranks import values
from scenarios_hook import SCENARIOS
from strategies import launch_devices


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return launch_devices("scenarios_hook", tmp_path_factory.mktemp("devices"), timeout=500)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(outcomes, scenario) -> None:
    values(outcomes, scenario, 1)


def test_no_large_float_crosses_devices(outcomes) -> None:
    assert values(outcomes, "only_payloads_cross_devices", 1) == [[]]
