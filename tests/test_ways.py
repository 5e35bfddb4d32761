"""`gc.Auto`: what it allows, what it decides, and that nothing is lost when that changes."""

import pytest
from auto_checks import all_checks
from hosts import run_on_hosts

from gradcomp.collective import LocalCollective

CHECKS = dict(all_checks())
# Those that choose for a link between hosts; momentum correction refuses hosts.
ON_HOSTS = [name for name in CHECKS if name.startswith("books") or name == "restored"]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("check", CHECKS)
def test_on_ranks_that_are_threads(check: str, size: int) -> None:
    LocalCollective(size).run(lambda rank: CHECKS[check](rank, "test"))


@pytest.mark.parametrize("check", ON_HOSTS)
def test_on_hosts(check: str) -> None:
    """Three leaders, so that there are two phases, and a rank that keeps nothing."""
    run_on_hosts((2, 1, 1), lambda rank: CHECKS[check](rank, "test"))
