"""Mixed precision on two real Horovod processes, one of which overflows."""

import pytest
from ranks import launch, values
from scenarios_mixed import SCENARIOS

RANKS = 2


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return launch("scenarios_mixed", RANKS, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(outcomes, scenario) -> None:
    values(outcomes, scenario, RANKS)


def test_stock_around_ours_says_what_to_write(outcomes) -> None:
    for told in values(outcomes, "stock_loss_scaling_is_put_right_or_refused", RANKS):
        assert "Write gc.LossScaleOptimizer(opt)" in told


def test_the_scale_recovers(outcomes) -> None:
    for scales in values(outcomes, "one_rank_overflows_a_hundred_times", RANKS):
        assert scales == [2.0**16] * 3
