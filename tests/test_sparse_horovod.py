"""Embeddings on two real Horovod processes."""

import pytest
from ranks import launch, values
from scenarios_sparse import SCENARIOS

RANKS = 2


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return launch("scenarios_sparse", RANKS, folder, env={"STATE_FOLDER": str(folder)})


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(outcomes, scenario) -> None:
    values(outcomes, scenario, RANKS)


def test_every_codec_trains_and_sends_less(outcomes) -> None:
    for told in values(outcomes, "fit_with_every_codec", RANKS):
        for spec, one in told.items():
            assert one["losses"][-1] < 0.9 * one["losses"][0], spec
            if spec != "none":
                assert one["sent"] < 0.65 * told["none"]["sent"], spec


def test_refusals_say_what_to_do(outcomes) -> None:
    for told in values(outcomes, "what_slices_cannot_do_is_told", RANKS):
        assert "give it a constant dense_shape" in told[0]
        assert "one FeedbackState for each" in told[1]
        assert "mine (slices) on rank 1" in told[2]
