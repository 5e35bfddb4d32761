"""`gc.Auto`: what it allows, what it decides, and that nothing is lost when that changes."""

import pytest
from auto_checks import all_checks

from gradcomp.collective import LocalCollective

CHECKS = dict(all_checks())


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("check", CHECKS)
def test_on_ranks_that_are_threads(check: str, size: int) -> None:
    LocalCollective(size).run(lambda rank: CHECKS[check](rank, "test"))
