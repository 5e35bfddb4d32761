"""Horovod's arguments and process sets on three real Horovod processes, on two pretended hosts."""

import inspect

import horovod.tensorflow as stock
import horovod.tensorflow.keras as stock_keras
import pytest
from ranks import launch, values
from scenarios_arguments import SCENARIOS

import gradcomp.horovod as hvd

RANKS = 3


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return launch("scenarios_arguments", RANKS, tmp_path_factory.mktemp("ranks"), hosts=(2, 1))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(outcomes, scenario) -> None:
    values(outcomes, scenario, RANKS)


@pytest.mark.parametrize(
    ("attempt", "told"),
    list(
        enumerate(
            [
                "backward_passes_per_step=3 and the optimizer's own gradient_accumulation_steps=2",
                "is built already",
                "backward_passes_per_step must be an integer of at least 1, got 0",
                "gradient_predivide_factor=2.0 divides before and after an average",
                "gradient_predivide_factor must be a positive number, got 0.0",
                "process_set must be a hvd.ProcessSet, got [0, 2]",
                "process set of ranks [0, 1] yet: give it to hvd.init(process_sets=[...])",
                "hierarchical=True is for all ranks, and process_set has ranks [0, 2]",
                "scale_local_gradients=False",
                "use_locking=True",
                "device_dense='/gpu:0'",
                "bucket_bytes= says how large",
                "op is hvd.Sum; leave it at 1.0",
                "average must be True or False, got 'loss'",
                "give op only",
                "process set of ranks [0, 1] yet",
                "postscale_factor=2.0) is not supported by gradcomp; leave postscale_factor at 1.0",
            ]
        )
    ),
)
def test_refusals_name_the_value_and_the_remedy(outcomes, attempt, told) -> None:
    for messages in values(outcomes, "what_has_no_meaning_is_refused", RANKS):
        assert told in messages[attempt]


def test_a_rank_outside_a_set_is_told_so(outcomes) -> None:
    assert values(outcomes, "allreduce_within_a_set", RANKS)[1] == (
        "rank 1 is not in the process set of ranks [0, 2]: call allreduce on its members only"
    )


def test_a_saved_set_that_is_not_there_is_named(outcomes) -> None:
    for told in values(outcomes, "a_saved_set_that_is_not_there_is_named", RANKS):
        assert "hvd.init(process_sets=[hvd.ProcessSet([0, 1])])" in told


def test_hosts_need_process_sets_and_the_error_says_which(outcomes) -> None:
    for told in values(outcomes, "hosts_need_process_sets_to_be_added", RANKS):
        assert 'hvd.init(process_sets="dynamic")' in told
        # The set of the leaders, ranks 0 and 2, exists already.
        assert "hvd.init(process_sets=[hvd.ProcessSet([0, 1])])" in told


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (hvd.DistributedOptimizer, stock_keras.DistributedOptimizer),
        (hvd.DistributedGradientTape, stock.DistributedGradientTape),
        (hvd.allreduce, stock.allreduce),
        (hvd.grouped_allreduce, stock.grouped_allreduce),
    ],
)
def test_positions_and_names_are_horovods(ours, theirs) -> None:
    def named(function) -> list[str]:
        parameters = inspect.signature(function).parameters.values()
        return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]

    assert named(ours) == named(theirs)


def test_the_other_module_of_horovod_has_no_name_that_is_not_taken() -> None:
    taken = set(inspect.signature(hvd.DistributedOptimizer).parameters)
    assert set(inspect.signature(stock.DistributedOptimizer).parameters) <= taken
