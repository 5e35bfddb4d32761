"""The bytes that gradcomp counts are the bytes that cross the network interface."""

import pytest
from ranks import launch, values
from scenarios_wire import NUMEL

RANKS = 2


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    # Idle ranks exchange control messages every cycle: fewer cycles leave fewer of them.
    env = {"HOROVOD_CYCLE_TIME": "20"}
    return launch("scenarios_wire", RANKS, tmp_path_factory.mktemp("ranks"), env, own_network=True)


@pytest.mark.parametrize("spec", NUMEL)
def test_counted_bytes_are_the_interfaces_within_5_percent(outcomes, spec) -> None:
    told = values(outcomes, spec, RANKS)
    assert told[0]["payload"] >= 4 * 2**20
    counted = sum(rank["sent"] for rank in told)
    # Ranks read the counter at slightly different times, around the same exchanges.
    for rank in told:
        assert rank["interface"] == pytest.approx(counted, rel=0.05)
