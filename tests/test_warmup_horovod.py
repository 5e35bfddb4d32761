"""Warm-ups and momentum correction on real Horovod processes."""

import pytest
from ranks import launch, values
from scenarios_warmup import SCENARIOS

RANKS = 2


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return launch("scenarios_warmup", RANKS, folder, env={"STATE_FOLDER": str(folder)})


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(outcomes, scenario) -> None:
    values(outcomes, scenario, RANKS)


def test_bytes_fall_from_epoch_to_epoch(outcomes) -> None:
    """Each epoch's bytes were held against the plan on the ranks."""
    told = values(outcomes, "fit_follows_the_epochs_and_traces_once", RANKS)[0]
    density, bits = told.values()
    assert density[0] > density[1] > density[2] > density[3] == density[4]
    assert bits[0] > bits[1] > bits[2] == bits[3] == bits[4]


@pytest.mark.parametrize(
    ("nth", "words"),
    [
        (0, ["SGD, got Adam", "momentum=0.9", "error_feedback=True"]),
        (1, ["momentum", "is 0.0", "momentum=0.9"]),
        (2, ["clipvalue=0.5", "global_clipnorm"]),
        (3, ["'momentums'", 'True, False or "momentum"']),
        (4, ["tape", "hvd.DistributedOptimizer"]),
        (5, ["table", "IndexedSlices", "error_feedback=True", "tf.convert_to_tensor"]),
        (6, ["allreduce", "epochs", "FeedbackState"]),
        (7, ["allreduce", "epochs", "FeedbackState"]),
    ],
)
def test_what_cannot_be_done_is_told(outcomes, nth, words) -> None:
    for told in values(outcomes, "what_momentum_cannot_do_is_refused", RANKS):
        for word in words:
            assert word in told[nth]


def test_it_trains_with_every_kind_of_codec(outcomes) -> None:
    for told in values(outcomes, "momentum_trains_with_every_kind_of_codec", RANKS):
        assert max(told.values()) < 0.8, told
