"""`gc.Auto` on three real Horovod processes."""

import re

import pytest
from ranks import launch, values
from scenarios_auto import SCENARIOS

RANKS = 3


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return launch("scenarios_auto", RANKS, folder, env={"STATE_FOLDER": str(folder)})


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(outcomes, scenario) -> None:
    values(outcomes, scenario, RANKS)


def test_what_is_chosen_is_shown(outcomes) -> None:
    told = values(outcomes, "it_measures_tells_and_reports", RANKS)
    for why, plan, saved, _ in told:
        assert why == "auto chose it"
        assert "auto: quantize:bits=4" in plan
        assert saved == "auto"
    assert re.search(r"measured in \d+ ms: quantize:bits=4 by two-phase takes", told[0][-1])


def test_why_nothing_is_compressed_is_told(outcomes) -> None:
    told = values(outcomes, "none_is_told_too", RANKS)
    assert {why for why, _ in told} == {"no candidate was predicted to be faster"}
    assert "none, since" in told[0][1]


def test_the_choice_follows_the_link(outcomes) -> None:
    for fast, slow, again in values(outcomes, "the_choice_follows_the_link", RANKS):
        assert fast == again == "none"
        assert "topk:density=0.01" in slow or "quantize:bits=4" in slow


def test_a_rule_chooses_for_its_variable_only(outcomes) -> None:
    for codecs in values(outcomes, "a_rule", RANKS):
        chosen = [codec for codec in codecs if codec.startswith("auto: ")]
        assert chosen in (["auto: quantize:bits=4"], ["auto: topk:density=0.01"])
        assert codecs.count("topk:density=0.05") == 1


def test_a_tape_compresses(outcomes) -> None:
    assert values(outcomes, "a_tape_chooses_too", RANKS)[0] == {"quantize:bits=4"}


def test_refusals_name_the_remedy(outcomes) -> None:
    for told in values(outcomes, "what_it_cannot_do_is_refused", RANKS):
        assert len(told) == 4
        assert all("name a codec, such as 'quantize:bits=8'" in text for text in told[:3])
        assert "nothing to begin with" in told[3]


def test_it_can_be_disabled(outcomes) -> None:
    assert values(outcomes, "disabled", RANKS)[0] == {"none"}


def test_the_handshake_knows_it(outcomes) -> None:
    messages = values(outcomes, "ranks_that_allow_different_errors_are_told", RANKS)
    assert len(set(messages)) == 1
    assert "auto:max_error=0.01" in messages[0]
