"""Policies and the plan they make."""

import json
import warnings
from types import SimpleNamespace

import pytest

import gradcomp as gc
from gradcomp.policy import as_policy


def variable(path, shape, dtype="float32"):
    return SimpleNamespace(path=path, shape=shape, dtype=dtype)


MODEL = [
    variable("net/embedding/table", (1000, 16)),
    variable("net/dense/kernel", (256, 128)),
    variable("net/dense/bias", (128,)),
    variable("net/norm/gamma", (4096,)),
    variable("net/small/kernel", (10, 10)),
    variable("net/head/kernel", (128, 64)),
]


def test_rules_come_first_then_size_then_the_default() -> None:
    policy = gc.Policy(
        gc.TopK(density=0.01),
        rules=[(r"embedding", "quantize:bits=8"), (r"head/", None), (r"small/", gc.FP16())],
    )
    chosen = [policy.codec_for(v.path, v.shape, v.dtype) for v in MODEL]
    assert chosen == [
        gc.Quantize(bits=8),
        gc.TopK(density=0.01),
        None,  # bias
        None,  # rank 1, whatever its size
        gc.FP16(),  # named, so its size doesn't matter
        None,  # left alone by name
    ]


def test_first_matching_rule_decides() -> None:
    policy = gc.Policy(None, rules=[("dense", "fp16"), ("dense/kernel", "bf16")])
    assert policy.codec_for("dense/kernel", (2, 2)) == gc.FP16()


def test_min_numel_bounds_the_default() -> None:
    policy = gc.Policy("fp16", min_numel=100)
    assert policy.codec_for("kernel", (10, 10)) == gc.FP16()
    assert policy.codec_for("kernel", (9, 11)) is None


def test_float64_stays_dense_and_integers_are_refused() -> None:
    policy = gc.Policy("fp16", rules=[("x", "fp16")])
    assert policy.codec_for("x", (64, 64), "float64") is None
    with pytest.raises(gc.CodecError, match=r"variable x has dtype int32"):
        policy.plan([variable("x", (64, 64), "int32")])


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: gc.Policy("fp17"), "fp17"),
        (lambda: gc.Policy(None, rules=[("(", None)]), r"'\('"),
        (lambda: gc.Policy(None, rules=["fp16"]), "fp16"),
        (lambda: gc.Policy(None, rules=[("a", "b", "c")]), "pair"),
        (lambda: gc.Policy("fp16", min_numel=1.5), "1.5"),
        (lambda: gc.Policy("fp16").plan(MODEL, world_size=0), "world_size.*0"),
        (lambda: gc.Policy("fp16").plan(MODEL, bucket_bytes=-1), "bucket_bytes.*-1"),
    ],
)
def test_bad_arguments_are_named(make, told) -> None:
    with pytest.raises(gc.CodecError, match=told):
        make()


def test_unknown_shapes_are_named() -> None:
    with pytest.raises(ValueError, match=r"net/x has the shape \(None, 3\)"):
        gc.Policy("fp16").plan([variable("net/x", (None, 3))])


def test_whatever_stands_for_a_policy_becomes_one() -> None:
    policy = gc.Policy("fp16", rules=[("a", None)])
    assert as_policy(policy) is policy
    assert as_policy("quantize:bits=4") == gc.Policy(gc.Quantize(bits=4))
    assert as_policy(gc.FP16()) == gc.Policy("fp16")
    assert as_policy(None).default is None
    assert hash(as_policy("fp16")) == hash(gc.Policy(gc.FP16()))


def test_config_survives_json() -> None:
    policy = gc.Policy(
        gc.TopK(density=0.02, values=gc.Quantize(bits=4)),
        rules=[("a/b", None), ("c", "bf16")],
        min_numel=7,
    )
    config = json.loads(json.dumps(policy.get_config()))
    assert gc.Policy.from_config(config) == policy


def test_plan_prints_a_row_a_variable_and_the_totals_last() -> None:
    plan = gc.Policy("quantize:bits=4", rules=[("embedding", "fp16")]).plan(MODEL, world_size=4)
    raw = 4 * sum(v.shape[0] * (v.shape[1] if len(v.shape) > 1 else 1) for v in MODEL)
    q4 = gc.Quantize(bits=4)
    payload = (
        2 * 16_000  # FP16
        + q4.payload_size(256 * 128)
        + q4.payload_size(128 * 64)
        + 4 * (128 + 4096 + 100)
    )
    assert plan.raw_bytes == raw
    assert plan.payload_bytes == payload
    assert plan.total_numel == raw // 4
    assert plan.compressed_numel == 16_000 + 256 * 128 + 128 * 64
    assert plan.sent_bytes == pytest.approx(2 * 3 / 4 * payload, abs=len(plan.buckets))
    assert plan.dense_bytes == 2 * 3 * raw // 4
    assert plan.residual_bytes == pytest.approx(
        4 * plan.compressed_numel * (1 + 1 / 4), abs=len(plan.buckets)
    )
    assert [row[0] for row in plan.rows()] == [v.path for v in MODEL]
    text = str(plan)
    lines = text.splitlines()
    position = [next(i for i, line in enumerate(lines) if v.path in line) for v in MODEL]
    assert position == sorted(position)
    total = next(i for i, line in enumerate(lines) if line.strip("│ ").startswith("total"))
    assert total > max(position)
    assert f"{raw:,}" in lines[total]
    assert f"{payload:,}" in lines[total]
    assert "two_phase" in text
    assert "dense" in text
    assert "1000×16" in text


@pytest.mark.parametrize("spec", ["fp8", "fp8:format=e5m2,block_size=32", "sign"])
@pytest.mark.parametrize(("world_size", "route"), [(2, "all_gather"), (4, "two_phase")])
def test_plan_of_blocks_with_scales(spec: str, world_size: int, route: str) -> None:
    plan = gc.Policy(spec).plan(MODEL, world_size)
    codec = gc.codec(spec)
    compressed = [v for v in plan.variables if v.codec == codec]
    assert sum(v.numel for v in compressed) == plan.compressed_numel > 0
    dense = plan.total_numel - plan.compressed_numel
    assert plan.payload_bytes == 4 * dense + sum(codec.payload_size(v.numel) for v in compressed)
    assert {b.route for b in plan.buckets if b.codec == codec} == {route}
    for chunk in (c for b in plan.buckets if b.route == "two_phase" for c in b.chunks):
        assert not (chunk.segments[:, 1] % codec.cut).any()


def test_plan_of_nothing() -> None:
    plan = gc.Policy("fp16").plan([])
    assert plan.sent_bytes == 0
    assert "0 bytes" in str(plan)


def test_disable_turns_everything_off_and_says_so_once(monkeypatch) -> None:
    monkeypatch.setenv("GRADCOMP_DISABLE", "1")
    monkeypatch.setattr("gradcomp.policy._said_disabled", False)
    policy = gc.Policy("fp16", rules=[("embedding", "bf16")])
    with pytest.warns(UserWarning, match="GRADCOMP_DISABLE is set"):
        plan = policy.plan(MODEL)
    assert plan.compressed_numel == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy.plan(MODEL)
    monkeypatch.setenv("GRADCOMP_DISABLE", "0")
    assert policy.plan(MODEL).compressed_numel > 0
