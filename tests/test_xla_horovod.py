"""XLA and gradient exchange on two real Horovod processes."""

import pytest
from ranks import launch, values
from scenarios_xla import SCENARIOS

RANKS = 2


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return launch("scenarios_xla", RANKS, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(outcomes, scenario) -> None:
    values(outcomes, scenario, RANKS)


def test_one_message_says_what_to_write(outcomes) -> None:
    for told in values(outcomes, "compiled_models_train_without_xla", RANKS):
        assert len(told) == 1
        assert "jit_compile=False" in told[0]


def test_refusals_say_what_to_write(outcomes) -> None:
    for told in values(outcomes, "exchanges_in_xla_functions_are_refused", RANKS):
        for message in told:
            assert "without jit_compile=True" in message
