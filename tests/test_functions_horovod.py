"""`hvd.allreduce` and its relatives on three real Horovod processes."""

import pytest
from ranks import launch, values
from scenarios_functions import SCENARIOS

RANKS = 3


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return launch("scenarios_functions", RANKS, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(outcomes, scenario) -> None:
    values(outcomes, scenario, RANKS)


@pytest.mark.parametrize(
    ("attempt", "told"),
    list(
        enumerate(
            [
                "op must be hvd.Average or hvd.Sum",
                "prescale_factor=0.5",
                "'nonsense'",
                "compression must be",
                "int32",
                "device_sparse='/cpu:0'",
                "groups=2",
                "op must be",
                "Keras 3 optimizer",
                "wrap it once",
                "optimizer.build(model.trainable_variables)",
                "num_groups=3",
            ]
        )
    ),
)
def test_refusals_name_the_value(outcomes, attempt, told) -> None:
    for messages in values(outcomes, "what_cannot_be_done_is_refused_by_name", RANKS):
        assert told in messages[attempt]
