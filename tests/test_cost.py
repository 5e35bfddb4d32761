"""What an exchange costs on paper, against sums done by hand."""

from __future__ import annotations

import math

import pytest

from gradcomp.cost import Cost, KernelSpeed, Link, break_even, bucket_cost

SPEED = KernelSpeed(encode=8e-9, decode=2e-9, write=1e-9)
RAW, PAYLOAD = 4_096_000, 512_000  # 1,024,000 elements
SECONDS = 1.024e-3  # of a nanosecond an element


@pytest.mark.parametrize(
    ("route", "ranks", "sent", "messages", "nanoseconds"),
    [
        ("dense", 2, 4_096_000, 2, 0),
        ("dense", 4, 6_144_000, 6, 0),
        ("dense", 256, 8_160_000, 510, 0),
        # encode, N payloads, one output
        ("all_gather", 2, 512_000, 1, 8 + 2 * 2 + 1),
        ("all_gather", 4, 1_536_000, 3, 8 + 4 * 2 + 1),
        ("all_gather", 256, 130_560_000, 255, 8 + 256 * 2 + 1),
        # encode, a chunk of N payloads that is written and encoded, one payload, one output
        ("two_phase", 2, 512_000, 2, 8 + (2 * 2 + 1 + 8) / 2 + 2 + 1),
        ("two_phase", 4, 768_000, 6, 8 + (4 * 2 + 1 + 8) / 4 + 2 + 1),
        ("two_phase", 256, 1_020_000, 510, 8 + (256 * 2 + 1 + 8) / 256 + 2 + 1),
    ],
)
def test_each_route_by_hand(route, ranks, sent, messages, nanoseconds) -> None:
    cost = bucket_cost(route, ranks, RAW, PAYLOAD, SPEED)
    assert (cost.sent, cost.messages) == (sent, messages)
    assert cost.kernels == pytest.approx(nanoseconds * SECONDS)


def test_time_is_bytes_messages_and_kernels() -> None:
    link = Link(bandwidth=1e8, latency=1e-3)
    cost = Cost(sent=5_000_000, messages=6, kernels=0.02)
    assert cost.communication(link) == pytest.approx(0.05 + 0.006)
    assert cost.total(link) == pytest.approx(0.076)


def test_costs_of_buckets_add_up() -> None:
    assert sum([Cost(1, 2, 0.5), Cost(10, 20, 0.25)], Cost()) == Cost(11, 22, 0.75)


def test_kernels_need_a_speed_and_routes_a_name() -> None:
    with pytest.raises(ValueError, match="'two_phase' runs kernels: give their speed"):
        bucket_cost("two_phase", 4, RAW, PAYLOAD)
    with pytest.raises(ValueError, match="unknown route 'star'"):
        bucket_cost("star", 4, RAW, PAYLOAD, SPEED)


def takes_less(cost: Cost, dense: Cost, bandwidth: float, latency: float) -> bool:
    link = Link(bandwidth, latency)
    return cost.total(link) < dense.total(link)


def test_break_even_by_hand_is_where_the_lines_cross() -> None:
    dense, cost = Cost(1_000_000, 6), Cost(250_000, 6, 0.003)
    between = break_even(cost, dense, latency=1e-3)
    # 750,000 bytes are saved for 3 ms.
    assert between == (0.0, pytest.approx(2.5e8))
    assert takes_less(cost, dense, 2.49e8, 1e-3)
    assert not takes_less(cost, dense, 2.51e8, 1e-3)


def test_messages_count_as_time_does() -> None:
    dense, cost = Cost(1_000_000, 4), Cost(250_000, 6, 0.001)
    assert break_even(cost, dense, latency=1e-3) == (0.0, pytest.approx(750_000 / 0.003))


def test_fewer_messages_for_more_bytes_win_on_fast_links_only() -> None:
    dense, cost = Cost(1_000_000, 10), Cost(3_000_000, 4, 0.001)
    between = break_even(cost, dense, latency=1e-3)
    # 2,000,000 bytes more, 6 messages less 1 ms of kernels.
    assert between == (pytest.approx(4e8), math.inf)
    assert not takes_less(cost, dense, 3.99e8, 1e-3)
    assert takes_less(cost, dense, 4.01e8, 1e-3)


def test_always_and_never() -> None:
    dense = Cost(1000, 4)
    assert break_even(Cost(500, 2, 0.001), dense, latency=1e-3) == (0.0, math.inf)
    assert break_even(Cost(1000, 4, 0.001), dense, latency=1e-3) is None
    assert break_even(dense, dense, latency=1e-3) is None
    assert break_even(Cost(2000, 4), dense, latency=0.0) is None


@pytest.mark.parametrize("route", ["all_gather", "two_phase"])
@pytest.mark.parametrize("ranks", [2, 4, 256])
def test_break_even_of_a_bucket_is_the_crossing(route, ranks) -> None:
    latency = 2e-5
    dense = bucket_cost("dense", ranks, RAW, RAW)
    cost = bucket_cost(route, ranks, RAW, PAYLOAD, SPEED)
    between = break_even(cost, dense, latency)
    for exponent in range(4, 13):
        bandwidth = 3.0 * 10**exponent
        inside = between is not None and between[0] < bandwidth < between[1]
        assert takes_less(cost, dense, bandwidth, latency) == inside
