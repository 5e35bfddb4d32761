"""Buckets: who travels together, by which route, and where tensors are cut."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradcomp as gc
from gradcomp.bucket import VariableSpec, choose_route, cut, make_buckets, sent_bytes


def specs(shapes, codec, dtype="float32"):
    return [VariableSpec(i, f"v{i}", shape, dtype, codec) for i, shape in enumerate(shapes)]


def test_bytes_sent_by_a_rank_are_those_of_the_design() -> None:
    assert sent_bytes("dense", 4, 1000, 100) == 1500
    assert sent_bytes("all_gather", 4, 1000, 100) == 300
    assert sent_bytes("two_phase", 4, 1000, 100) == 150
    with pytest.raises(ValueError, match="'ring'"):
        sent_bytes("ring", 4, 1, 1)


@pytest.mark.parametrize(
    ("codec", "world_size", "route"),
    [
        (gc.Quantize(bits=4), 2, "all_gather"),  # equal bytes, one operation
        (gc.Quantize(bits=4), 3, "two_phase"),
        (gc.FP16(), 4, "two_phase"),
        (gc.TopK(density=0.01), 4, "all_gather"),
        (gc.TopK(density=0.01), 250, "all_gather"),
        (gc.TopK(density=0.01), 300, "dense"),  # N > 2R/P
        (gc.Identity(), 2, "dense"),
    ],
)
def test_route_is_the_cheapest_that_the_codec_declares(codec, world_size, route) -> None:
    n = 10**6
    assert choose_route(codec.routes, world_size, 4 * n, codec.payload_size(n)) == route
    (bucket,) = make_buckets(specs([(1000, 1000)], codec), world_size)
    assert bucket.route == route
    assert (bucket.codec is None) == (route == "dense")


def test_last_variables_come_first_and_full_buckets_are_closed() -> None:
    shapes = [(10, 10)] * 5
    buckets = make_buckets(specs(shapes, gc.FP16()), 2, bucket_bytes=800)
    assert [[v.index for v in b.variables] for b in buckets] == [[4, 3], [2, 1], [0]]
    assert [b.index for b in buckets] == [0, 1, 2]


def test_codecs_and_dtypes_do_not_share_a_bucket() -> None:
    variables = [
        VariableSpec(0, "a", (4, 4), "float32", gc.FP16()),
        VariableSpec(1, "b", (4, 4), "float32", None),
        VariableSpec(2, "c", (4, 4), "float64", None),
        VariableSpec(3, "d", (4, 4), "float16", gc.FP16()),
    ]
    groups = [[v.index for v in b.variables] for b in make_buckets(variables, 2)]
    assert sorted(groups) == [[1], [2], [3, 0]]


def test_a_variable_larger_than_a_bucket_has_its_own() -> None:
    buckets = make_buckets(specs([(3,), (1000,), (3,)], gc.FP16()), 2, bucket_bytes=100)
    assert [[v.index for v in b.variables] for b in buckets] == [[2], [1], [0]]


@given(
    numels=st.lists(st.integers(0, 1000), min_size=1, max_size=8),
    parts=st.integers(1, 9),
    codec=st.sampled_from(
        [
            gc.FP16(),
            gc.Quantize(bits=4, block_size=32),
            gc.Quantize(bits=2, block_size=96),
            gc.FP8(block_size=64),
            gc.Sign(block_size=96),
        ]
    ),
)
def test_cutting_covers_every_element_once_at_block_boundaries(numels, parts, codec) -> None:
    variables = specs([(n,) for n in numels], codec)
    chunks = cut(codec, variables, parts)
    assert len(chunks) == parts
    table = np.concatenate([c.segments for c in chunks])
    assert len(table) <= len(numels) + parts - 1
    position = dict.fromkeys(range(len(numels)), 0)
    for tensor, start, length, kept, stream in table:
        assert start == position[tensor]
        assert start % codec.cut == 0
        assert kept == 0
        assert stream == tensor
        position[tensor] += length
    assert list(position.values()) == numels
    assert list(table[:, 0]) == sorted(table[:, 0])
    # Cutting costs no byte.
    assert sum(c.payload_bytes for c in chunks) == sum(map(codec.payload_size, numels))
    units = [math.ceil(c.numel / codec.cut) for c in chunks]
    assert max(units) - min(units) <= 1 + len(numels)


def test_top_k_is_never_cut() -> None:
    codec = gc.TopK(density=0.1)
    (chunk,) = cut(codec, specs([(100,), (7,), (0,)], codec), 1)
    assert chunk.segments.tolist() == [[0, 0, 100, 10, 0], [1, 0, 7, 1, 1], [2, 0, 0, 0, 2]]
