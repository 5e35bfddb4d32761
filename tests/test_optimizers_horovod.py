"""Keras's optimizers on two real Horovod processes, against one process with the whole batch."""

import pytest
from ranks import launch, values
from scenarios_optimizers import COMMON, SCENARIOS

RANKS = 2
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return launch("scenarios_optimizers", RANKS, folder, timeout=570)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(outcomes, scenario) -> None:
    values(outcomes, scenario, RANKS)


@pytest.mark.parametrize(
    "scenario", ["every_optimizer_equals_one_process", "fit_with_several_steps_an_execution"]
)
def test_weights_are_those_of_one_process(outcomes, scenario) -> None:
    for told in values(outcomes, scenario, RANKS):
        assert {name: far for name, far in told.items() if not far <= TOLERANCE} == {}


def test_every_optimizer_of_keras_is_among_them(outcomes) -> None:
    first = values(outcomes, "every_optimizer_equals_one_process", RANKS)[0]
    tried = {name.split()[0] for name in first}
    assert len(tried) >= 12
    assert {"SGD", "AdamW", "Muon", "Lion"} <= tried
    assert {f"{cls} {name}" for cls in ("SGD", "AdamW") for name in COMMON} <= set(first)
    assert {name.split()[1] for name in first if not name.startswith(("SGD", "AdamW"))} == set(
        COMMON
    )


def test_clipping_before_the_mean_would_be_noticed(outcomes) -> None:
    for told in values(outcomes, "clipping_would_differ_on_one_ranks_gradient", RANKS):
        assert all(far > 100 * TOLERANCE for far in told.values()), told


def test_a_refusal_says_what_to_use(outcomes) -> None:
    for told in values(outcomes, "what_cannot_be_distributed_is_refused", RANKS):
        assert "use one optimizer" in told
