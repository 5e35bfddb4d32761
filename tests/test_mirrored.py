"""Under MirroredStrategy, on two logical CPU devices."""

import pytest
from ranks import values
from scenarios_mirrored import SCENARIOS
from strategies import launch_devices


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return launch_devices("scenarios_mirrored", tmp_path_factory.mktemp("devices"), timeout=500)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(outcomes, scenario) -> None:
    values(outcomes, scenario, 1)


def test_stock_keras_fails_beside_ours(outcomes) -> None:
    (cases,) = values(outcomes, "what_stock_gets_wrong_equals_one_process", 1)
    for name, (stock, ours) in cases.items():
        assert ours < 2e-6, name
        if name in ("accumulation", "overwrite", "all of it"):
            assert stock == "merge_call"
        else:
            assert float(stock.split()[0]) > 1e-4, name


def test_stock_loses_its_weights_to_one_overflow(outcomes) -> None:
    (told,) = values(outcomes, "an_overflow_on_one_replica_skips_the_step_on_all", 1)
    assert not told["stock"]
    for compression in ("identity", "topk:density=0.05"):
        skipped, not_exchanged, scale = told[compression]
        assert skipped == not_exchanged == 1
        assert scale == 2.0**14  # from 2 ** 15
