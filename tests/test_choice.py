"""What an `Auto` decides, as a function of the link, the kernels, the ranks and the sizes."""

import pytest

import gradcomp as gc
from gradcomp.choice import MARGIN, choose, differs, explain
from gradcomp.cost import KernelSpeed, Link
from gradcomp.models import Weight

SPEED = KernelSpeed(encode=0.8e-9, decode=0.4e-9, write=0.2e-9)  # about what one core does
EVERYTHING = gc.Auto(max_error=1.0)
SLOW, COMMON, FAST = Link(12.5e6, 1e-3), Link(125e6, 2e-4), Link(3e9, 2e-4)
LARGE, SMALL = (2500, 1000), (32, 40)


def decide(link: Link, ranks: int, shape=LARGE, auto=EVERYTHING, speed=SPEED, before=None):
    plan = gc.Policy(auto).plan([Weight("kernel", shape)], world_size=ranks)
    (ways,) = plan.alternatives
    speeds = {way.codec.spec: speed for way in ways if way.codec is not None}
    choice = choose(ways, ranks, link, speeds, before)
    return ways[choice.number], choice, ways


def name_of(bucket) -> str:
    return "none" if bucket.codec is None else f"{bucket.codec.name} {bucket.route}"


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_a_slow_link_compresses_and_beats_none(ranks) -> None:
    for auto in (EVERYTHING, gc.Auto()):
        chosen, choice, _ = decide(SLOW, ranks, auto=auto)
        assert chosen.codec is not None
        assert choice.seconds[choice.number] < 0.3 * choice.seconds[0]


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_fast_link_leaves_gradients_alone(ranks) -> None:
    assert decide(FAST, ranks)[0].codec is None


@pytest.mark.parametrize("link", [COMMON, FAST])
def test_small_buckets_are_not_worth_another_exchange(link) -> None:
    assert decide(link, 4, SMALL)[0].codec is None


def test_the_bound_on_errors_decides_among_codecs() -> None:
    told = {bound: name_of(decide(SLOW, 4, auto=gc.Auto(bound))[0]) for bound in (1e-3, 0.01, 0.15)}
    assert told == {
        1e-3: "fp16 two_phase",
        0.01: "quantize two_phase",
        0.15: "quantize two_phase",
    }
    bits = [decide(SLOW, 4, auto=gc.Auto(bound))[0].codec.bits for bound in (0.01, 0.15)]
    assert bits == [8, 4]


def test_top_k_is_left_where_many_ranks_make_decoding_dear() -> None:
    """Its all-gather sends fewest bytes among a few ranks, and decodes a payload of each."""
    auto = gc.Auto(candidates=["topk:density=0.01", "quantize:bits=4"])
    told = [name_of(decide(COMMON, ranks, auto=auto)[0]) for ranks in (2, 4, 64)]
    assert told == ["topk all_gather", "topk all_gather", "quantize two_phase"]
    alone = gc.Auto(candidates=["topk:density=0.01"])
    assert name_of(decide(COMMON, 512, auto=alone)[0]) == "none"


def test_latency_decides_between_routes() -> None:
    """Two phases send less among many ranks, in twice as many messages."""
    auto = gc.Auto(candidates=["quantize:bits=4"])
    free = KernelSpeed(0, 0, 0)
    for latency, route in ((1e-6, "two_phase"), (1.5e-3, "all_gather"), (1e-2, "dense")):
        link = Link(12.5e6, latency)
        assert decide(link, 8, (320, 100), auto=auto, speed=free)[0].route == route


def test_slow_kernels_are_not_used() -> None:
    slow = KernelSpeed(1e-6, 1e-6, 1e-6)
    assert decide(COMMON, 4, speed=slow)[0].codec is None


def test_a_prediction_has_to_win_by_a_margin() -> None:
    auto = gc.Auto(candidates=["fp16"])
    for factor, wins in ((0.99, True), (1.01, False)):
        link = Link(1e8, 0.0)
        dense = 2 * LARGE[0] * LARGE[1] * 4 / 2 / 1e8
        # Half of the bytes, and kernels up to the margin.
        kernels = (factor * MARGIN - 0.5) * dense / (LARGE[0] * LARGE[1])
        chosen, _, _ = decide(link, 2, auto=auto, speed=KernelSpeed(kernels, 0, 0))
        assert (chosen.codec is not None) == wins


def test_what_is_chosen_stays_unless_another_is_clearly_faster() -> None:
    _, fresh, ways = decide(SLOW, 4)
    times = sorted(range(1, len(ways)), key=fresh.seconds.__getitem__)
    near = [n for n in times[1:] if fresh.seconds[n] < fresh.seconds[times[0]] / 0.9]
    far = [n for n in times if fresh.seconds[n] > fresh.seconds[times[0]] / 0.9]
    assert all(decide(SLOW, 4, before=n)[1].number == n for n in near)
    assert far
    assert all(decide(SLOW, 4, before=n)[1].number == fresh.number for n in far)


def test_links_differ_by_a_factor_of_two() -> None:
    link = Link(1e8, 1e-3)
    assert not differs(link, Link(1.9e8, 0.6e-3))
    assert differs(link, Link(2.1e8, 1e-3))
    assert differs(link, Link(0.4e8, 1e-3))
    assert differs(link, Link(1e8, 3e-3))


def test_it_is_explained_in_one_line() -> None:
    chosen, slow, ways = decide(SLOW, 4)
    _, fast, _ = decide(FAST, 4)
    line = explain([ways, ways], [slow, slow], 4, SLOW, 0.0834)
    assert f"{chosen.codec.spec} by " in line
    assert "instead of" in line
    assert "(2 buckets)" in line
    assert "4 ranks at 0.1 Gbit/s and 1000 us a message, measured in 83 ms: " in line
    told = explain([ways, ways], [slow, fast], 4, FAST, 0.0834)
    assert "none, since " in told
    assert "would take" in told
    assert "\n" not in line + told


def test_alternatives_are_cut_alike() -> None:
    plan = gc.Policy(EVERYTHING).plan([Weight("a", (300, 40)), Weight("b", (64, 65))], 4)
    (layout,), (ways,) = plan.layouts, plan.alternatives
    assert layout.route == "two_phase"
    assert [w.route for w in ways[:1]] == ["dense"]
    for way in ways:
        if way.route == "two_phase":
            cuts = [chunk.segments[:, :3].tolist() for chunk in way.chunks]
            assert cuts == [chunk.segments[:, :3].tolist() for chunk in layout.chunks]
    assert plan.buckets == (ways[0],)
    assert plan.rows()[0][2::3] == ("auto:max_error=1.0", "chosen when built")
