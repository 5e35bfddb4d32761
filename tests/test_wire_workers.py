"""Between hosts under MultiWorkerMirroredStrategy the interface sends what the plan promises."""

import pytest
from ranks import values
from strategies import launch_hosts

from bench.hosts import Hosts, HostsUnavailableError

WORKERS = 3
ROUTES = ("dense", "all_gather", "two_phase", "all")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    try:
        with Hosts(WORKERS, rate=None) as hosts:
            yield launch_hosts("scenarios_wire_workers", hosts, tmp_path_factory.mktemp("hosts"))
    except HostsUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("routes", ROUTES)
def test_the_interface_sends_what_the_plan_says(outcomes, routes) -> None:
    for worker in values(outcomes, routes, WORKERS):
        assert worker["plan"] > 10 * 2**20
        assert worker["counted"] == pytest.approx(worker["plan"], rel=0.01)
        assert 0.95 < worker["interface"] / worker["plan"] < 1.05


def test_what_is_compressed_sends_less(outcomes) -> None:
    for worker in values(outcomes, "all", WORKERS):
        assert worker["interface"] < 0.4 * worker["uncompressed"]
