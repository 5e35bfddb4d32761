"""Codecs as values: specs, configs, equality, options that are refused."""

from __future__ import annotations

import copy
import json
import math
import pickle
import warnings
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradcomp as gc
from gradcomp.codecs import ArrayCodec, KernelCodec, quantize, registered
from gradcomp.kernels import KernelParams

block_sizes = st.integers(1, 100).map(lambda n: 32 * n)
casts = st.sampled_from([gc.Identity(), gc.FP16(), gc.BF16()])
quantizers = st.builds(
    gc.Quantize,
    bits=st.sampled_from([8, 4, 2]),
    block_size=block_sizes,
    stochastic=st.sampled_from([None, True, False]),
)
others = st.builds(gc.FP8, st.sampled_from(["e4m3", "e5m2"]), block_sizes) | st.builds(
    gc.Sign, block_sizes
)
values = casts | quantizers | others
densities = st.floats(0, 1, exclude_min=True)
codecs = values | st.builds(gc.TopK, densities, values)


@settings(deadline=None)
@given(codecs)
def test_specs_and_configs_come_back(codec: gc.Codec) -> None:
    for same in (
        gc.codec(codec.spec),
        gc.codec(f" {codec.spec} "),
        gc.Codec.from_config(json.loads(json.dumps(codec.get_config()))),
        type(codec).from_config(codec.get_config()),
        eval(repr(codec), vars(gc)),
        copy.deepcopy(codec),
        pickle.loads(pickle.dumps(codec)),
    ):
        assert same == codec and hash(same) == hash(codec) and repr(same) == repr(codec)


@settings(deadline=None)
@given(a=codecs, b=codecs)
def test_codecs_are_equal_if_their_specs_are(a: gc.Codec, b: gc.Codec) -> None:
    assert (a == b) is (a.spec == b.spec)


@pytest.mark.parametrize(
    ("codec", "spec"),
    [
        (gc.Identity(), "identity"),
        (gc.FP16(), "fp16"),
        (gc.BF16(), "bf16"),
        (gc.Quantize(), "quantize:bits=8"),
        (gc.Quantize(bits=4, block_size=512), "quantize:bits=4,block_size=512"),
        (gc.Quantize(stochastic=True), "quantize:bits=8,stochastic=true"),
        (gc.Quantize(2, 32, False), "quantize:bits=2,block_size=32,stochastic=false"),
        (gc.FP8(), "fp8:format=e4m3"),
        (gc.FP8("e5m2", 64), "fp8:format=e5m2,block_size=64"),
        (gc.Sign(), "sign:block_size=512"),
        (gc.TopK(), "topk:density=0.01"),
        (gc.TopK(0.5, gc.Identity()), "topk:density=0.5,values=identity"),
        (gc.TopK(1, "bf16"), "topk:density=1.0,values=bf16"),
        (gc.TopK(1e-5, gc.Quantize()), "topk:density=1e-05,values=(quantize:bits=8)"),
        (gc.TopK(0.1, "fp8"), "topk:density=0.1,values=(fp8:format=e4m3)"),
        (gc.TopK(0.1, gc.Sign(64)), "topk:density=0.1,values=(sign:block_size=64)"),
    ],
)
def test_specs_are_short(codec: gc.Codec, spec: str) -> None:
    assert codec.spec == spec
    assert gc.codec(spec) == codec


@pytest.mark.parametrize(
    ("spec", "codec"),
    [
        ("none", None),
        (None, None),
        (gc.FP16(), gc.FP16()),
        ("quantize", gc.Quantize()),
        ("quantize: stochastic = none , bits = 4", gc.Quantize(4)),
        ("fp8", gc.FP8("e4m3", 128)),
        ("sign", gc.Sign(512)),
        ("topk:values=sign", gc.TopK(0.01, gc.Sign())),
        ("topk", gc.TopK(0.01)),
        ("topk:density=1", gc.TopK(1.0)),
        ("topk:values=(fp16),density=0.1", gc.TopK(0.1)),
        ("topk:density=0.1,select=exact", gc.TopK(0.1)),
        (
            "topk:values=(quantize:bits=4,block_size=64),density=0.1",
            gc.TopK(0.1, gc.Quantize(4, 64)),
        ),
        ("topk:density=0.1,values=quantize:bits=4", gc.TopK(0.1, gc.Quantize(4))),
    ],
)
def test_other_ways_to_write_a_spec(spec: Any, codec: gc.Codec | None) -> None:
    assert gc.codec(spec) == codec


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "unknown codec ''; there are .*bf16.*topk.* and none"),
        ("fp4", "unknown codec 'fp4'"),
        ("fp8:e5m2", "'e5m2' in the spec 'fp8:e5m2' must read option=value"),
        ("fp8:bits=4", "fp8 has no option 'bits'; it has format, block_size"),
        ("sign:block_size=100", "block_size must be a positive multiple of 32, got 100"),
        ("none:x=1", "unknown codec 'none'"),
        ("FP16", "unknown codec 'FP16'"),
        ("quantize:", r"'' in the spec 'quantize:' must read option=value"),
        ("quantize:4", "'4' in the spec 'quantize:4' must read option=value"),
        ("quantize:bits=", "must read option=value"),
        ("quantize:bits=4,,block_size=32", "must read option=value"),
        ("quantize:bits=4,bits=8", "gives bits twice"),
        ("quantize:bit=4", "quantize has no option 'bit'; it has bits, block_size, stochastic"),
        ("fp16:bits=4", "fp16 has no option 'bits'; it has none"),
        ("topk:values=(quantize:bits=4", "parentheses .* do not match"),
        ("topk:values=quantize:bits=4)", "parentheses .* do not match"),
        ("topk:values=)(", "parentheses .* do not match"),
        ("topk:values=quantize:bits=4,block_size=64", "nested spec .* stands in parentheses"),
        ("topk:values=(quantize:bits=5)", "bits must be 8, 4 or 2, got 5"),
        ("quantize:bits=four", "bits must be an integer, got 'four'"),
        ("quantize:bits=4.0", "bits must be an integer, got 4.0"),
        (8, "expected a codec or a spec such as 'quantize:bits=4', got 8"),
        (gc.FP16, "expected a codec or a spec .*FP16"),
    ],
)
def test_specs_that_are_refused(spec: Any, message: str) -> None:
    with pytest.raises(gc.CodecError, match=message):
        gc.codec(spec)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gc.Quantize(bits=3), "^bits must be 8, 4 or 2, got 3$"),
        (lambda: gc.Quantize(bits=True), "bits must be an integer, got True"),
        (lambda: gc.Quantize(bits=None), "bits must be an integer, got None"),
        (lambda: gc.Quantize(bits=np.float32(4)), "bits must be an integer"),
        (lambda: gc.Quantize(block_size=0), "block_size must be a positive multiple of 32, got 0"),
        (lambda: gc.Quantize(block_size=-32), "block_size must be a positive multiple of 32"),
        (lambda: gc.Quantize(block_size=100), "block_size must be a positive multiple of 32"),
        (lambda: gc.Quantize(stochastic=1), "stochastic must be True, False or None, got 1"),
        (lambda: gc.Quantize(stochastic="yes"), "stochastic must be True, False or None"),
        (lambda: gc.FP8("e3m4"), "^format must be 'e4m3' or 'e5m2', got 'e3m4'$"),
        (lambda: gc.FP8(8), "format must be 'e4m3' or 'e5m2', got 8"),
        (lambda: gc.FP8([]), r"format must be 'e4m3' or 'e5m2', got \[\]"),
        (lambda: gc.FP8(block_size=0), "block_size must be a positive multiple of 32, got 0"),
        (lambda: gc.FP8(block_size=128.0), "block_size must be an integer, got 128.0"),
        (lambda: gc.Sign(-512), "block_size must be a positive multiple of 32, got -512"),
        (lambda: gc.Sign(True), "block_size must be an integer, got True"),
        (lambda: gc.TopK(0), "^density must be above 0 and at most 1, got 0.0$"),
        (lambda: gc.TopK(-0.1), "density must be above 0 and at most 1, got -0.1"),
        (lambda: gc.TopK(1.5), "density must be above 0 and at most 1, got 1.5"),
        (lambda: gc.TopK(math.nan), "density must be a finite number, got nan"),
        (lambda: gc.TopK(math.inf), "density must be a finite number, got inf"),
        (lambda: gc.TopK(True), "density must be a finite number, got True"),
        (lambda: gc.TopK("1%"), "density must be a finite number, got '1%'"),
        (lambda: gc.TopK(0.1, gc.TopK()), r"BF16, FP8, Quantize or Sign, got TopK\("),
        (lambda: gc.TopK(0.1, None), "BF16, FP8, Quantize or Sign, got None"),
        (lambda: gc.TopK(0.1, "none"), "BF16, FP8, Quantize or Sign, got None"),
        (lambda: gc.TopK(0.1, 8), "expected a codec or a spec"),
        (lambda: gc.TopK(0.1, select="threshold"), "select must be 'exact', got 'threshold'"),
    ],
)
def test_options_that_are_refused(make: Any, message: str) -> None:
    with pytest.raises(gc.CodecError, match=message):
        make()


def test_numpy_scalars_become_plain_numbers() -> None:
    codec = gc.Quantize(np.int64(4), np.uint16(64), np.True_)
    assert codec == gc.Quantize(4, 64, True)
    assert repr(codec) == "Quantize(bits=4, block_size=64, stochastic=True)"
    assert json.dumps(codec.get_config())
    assert gc.TopK(np.float32(0.25)) == gc.TopK(0.25)
    assert gc.TopK(np.int8(1)) == gc.TopK(1.0)
    assert repr(gc.TopK(np.float64(0.5)).density) == "0.5"


def test_codecs_cannot_be_changed() -> None:
    codec = gc.Quantize()
    with pytest.raises(FrozenInstanceError):
        codec.bits = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "unknown codec None"),
        ({"name": "lzma"}, "unknown codec 'lzma'"),
        ({"name": "quantize", "level": 3}, "quantize has no option 'level'"),
        ({"name": "quantize", "bits": 7}, "got 7"),
        ({"name": "fp16"}, r"FP16\(\) is not a Quantize"),
    ],
)
def test_configs_that_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(gc.CodecError, match=message):
        gc.Quantize.from_config(config)


def test_configs_nest() -> None:
    config = gc.TopK(0.1, gc.Quantize(4)).get_config()
    assert config == {
        "name": "topk",
        "density": 0.1,
        "values": {"name": "quantize", "bits": 4, "block_size": 256, "stochastic": None},
        "select": "exact",
    }


def test_a_name_is_taken_once() -> None:
    with pytest.raises(gc.CodecError, match="a codec named 'fp16' exists already: FP16"):

        class Impostor(gc.FP16):
            name = "fp16"

    assert registered()["fp16"] is gc.FP16
    names = {"bf16", "fp16", "fp8", "identity", "quantize", "sign", "topk"}
    assert names <= set(registered())


def test_an_option_that_is_required_is_asked_for() -> None:
    @dataclass(frozen=True)
    class Rank(ArrayCodec):
        rank: int

        name = "rank_of_a_test"

        def payload_size(self, numel: int) -> int:
            return self.rank

        def encode_array(self, x: Any, random: Any) -> Any:
            return x

        def decode_array(self, payload: Any, numel: int) -> Any:
            return payload

    assert gc.codec("rank_of_a_test:rank=4") == Rank(4)
    assert Rank(4).spec == "rank_of_a_test:rank=4"
    assert not Rank(4).unbiased() and not Rank(4).lossless
    assert np.isinf(Rank(4).error_bound(np.zeros(2, np.float32))).all()
    with pytest.raises(gc.CodecError, match=r"rank_of_a_test: .*'rank'"):
        gc.codec("rank_of_a_test")


# What they claim.


def test_routes_and_cuts() -> None:
    assert gc.Identity().routes == ("dense",)
    assert gc.TopK().routes == ("dense", "all_gather")
    for codec in (gc.FP16(), gc.BF16(), gc.FP8(), gc.Quantize(block_size=96), gc.Sign()):
        assert codec.routes == ("dense", "all_gather", "two_phase")
    for with_blocks in (gc.FP8, gc.Quantize, gc.Sign):
        assert with_blocks(block_size=96).cut == 96
    assert gc.FP16().cut % 32 == gc.TopK().cut % 32 == 0


def test_what_is_unbiased() -> None:
    assert gc.Identity().unbiased() and gc.Identity().unbiased(feedback=True)
    assert gc.Quantize().unbiased() and not gc.Quantize().unbiased(feedback=True)
    assert gc.Quantize(stochastic=True).unbiased(feedback=True)
    assert not gc.Quantize(stochastic=False).unbiased()
    biased = (gc.FP16(), gc.BF16(), gc.FP8(), gc.Sign(), gc.TopK())
    assert not any(codec.unbiased(feedback) for codec in biased for feedback in (False, True))
    assert [c.lossless for c in (gc.Identity(), gc.FP16(), gc.TopK(1.0))] == [True, False, False]


@pytest.mark.parametrize(
    ("codec", "numel", "size"),
    [
        (gc.Identity(), 1_000_000, 4_000_000),
        (gc.FP16(), 1_000_000, 2_000_000),
        (gc.BF16(), 3, 6),
        (gc.Quantize(8), 1_000_000, 1_000_000 + 4 * 3907),
        (gc.Quantize(4), 1_000_000, 500_000 + 4 * 3907),
        (gc.Quantize(2, 32), 33, 9 + 8),
        (gc.Quantize(4, 32), 33, 17 + 8),
        # 10,000 of a million: 6 low bits an index, and 10,000 + 999,999 // 64 high bits.
        (gc.TopK(0.01), 1_000_000, 7_500 + 3_203 + 20_000),
        (gc.TopK(0.01, gc.Identity()), 1_000_000, 7_500 + 3_203 + 40_000),
        (gc.TopK(0.01, gc.Quantize(4)), 1_000_000, 7_500 + 3_203 + 5_000 + 4 * 40),
        (gc.FP8(), 1_000_000, 1_000_000 + 4 * 7813),
        (gc.FP8("e5m2", 32), 33, 33 + 8),
        (gc.Sign(), 1_000_000, 125_000 + 4 * 1954),
        (gc.Sign(32), 33, 5 + 8),
        (gc.TopK(0.01, gc.FP8()), 1_000_000, 7_500 + 3_203 + 10_000 + 4 * 79),
        (gc.TopK(0.01, gc.Sign()), 1_000_000, 7_500 + 3_203 + 1_250 + 4 * 20),
        (gc.TopK(1.0), 9, 0 + 3 + 18),
        (gc.TopK(), 0, 0),
        (gc.Quantize(), np.int64(0), 0),
    ],
)
def test_payload_sizes(codec: gc.Codec, numel: int, size: int) -> None:
    assert codec.payload_size(numel) == size
    assert type(codec.payload_size(numel)) is int


@pytest.mark.parametrize("numel", [-1, 1.0, True, None, "9"])
@pytest.mark.parametrize("codec", [gc.FP16(), gc.TopK()])
def test_sizes_of_nothing_sensible(codec: gc.Codec, numel: Any) -> None:
    with pytest.raises(gc.CodecError, match="numel must be"):
        codec.payload_size(numel)


@pytest.mark.parametrize(
    ("density", "numel", "kept"),
    [(0.01, 0, 0), (0.01, 1, 1), (0.01, 100, 1), (0.01, 101, 2), (0.5, 3, 2), (1.0, 7, 7)],
)
def test_kept(density: float, numel: int, kept: int) -> None:
    assert gc.TopK(density).kept(numel) == kept
    assert gc.FP16().kept(numel) == 0


# Which kernel they name.


def test_rounding_depends_on_feedback() -> None:
    def stochastic(codec: KernelCodec, feedback: bool) -> bool:
        return codec.kernel_params(feedback).stochastic

    for codec in (gc.Quantize(4), gc.TopK(0.1, gc.Quantize(4))):
        assert stochastic(codec, False) and not stochastic(codec, True)
    assert stochastic(gc.Quantize(4, stochastic=True), True)
    assert not stochastic(gc.Quantize(4, stochastic=False), False)


def test_kernel_params() -> None:
    assert gc.TopK(0.1).kernel_params(True) == KernelParams("topk", values="float16")
    assert gc.FP8("e5m2", 64).kernel_params(True) == KernelParams("float8_e5m2", 0, 64)
    assert gc.Sign(64).kernel_params(True) == KernelParams("sign", 0, 64)
    signs = gc.TopK(0.1, gc.Sign(64)).kernel_params(True)
    assert signs == KernelParams("topk", 0, 64, False, "sign")
    nested = gc.TopK(0.1, gc.Quantize(4, 64))
    assert nested.kernel_params(True) == KernelParams("topk", 4, 64, False, "quantize")


def test_two_random_bits_with_feedback_warn_once() -> None:
    quantize._warn_of_two_bits.cache_clear()
    codec = gc.Quantize(bits=2, stochastic=True)
    codec.kernel_params(feedback=False)
    with pytest.warns(UserWarning, match="leave stochastic=None"):
        codec.kernel_params(feedback=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        codec.kernel_params(feedback=True)
        gc.Quantize(bits=2).kernel_params(feedback=True)
