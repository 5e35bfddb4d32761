"""Behaviours that Horovod's own tests hold Horovod to, on three ranks and in a single process."""

import pytest
from ranks import launch, values
from scenarios_peer import SCENARIOS


@pytest.fixture(scope="module", params=[3, 1], ids=["three ranks", "one rank"])
def run(request, tmp_path_factory):
    return request.param, launch("scenarios_peer", request.param, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(run, scenario) -> None:
    ranks, outcomes = run
    values(outcomes, scenario, ranks)
