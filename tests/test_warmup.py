"""Warm-ups: their stages, and what ranks that are threads of this process do in them."""

import json
from types import SimpleNamespace

import pytest
from warmup_checks import all_checks, warm_plan

import gradcomp as gc
from gradcomp.collective import LocalCollective
from gradcomp.options import Options
from gradcomp.warmup import schedule

pytestmark = pytest.mark.filterwarnings("ignore:there is one process only")

# Threads can't share a compiled step; Horovod ranks run those.
CHECKS = {name: check for name, check in all_checks() if not name.endswith("compiled]")}


# One rank compresses nothing, so that there is no state to keep.
RUNS = [
    (check, size)
    for check in CHECKS
    for size in (1, 2, 3, 4)
    if (check, size) != ("absent_variables_keep_their_state", 1)
]


@pytest.mark.parametrize(("check", "size"), RUNS)
def test_check(check: str, size: int) -> None:
    LocalCollective(size).run(lambda rank: CHECKS[check](rank, "test"))


def densities(*codecs) -> list[float]:
    return [codec.density for codec in codecs]


def test_density_falls_as_the_paper_has_it() -> None:
    final = gc.TopK(density=0.001, values=gc.BF16())
    ramp = gc.Warmup(final, epochs=4).codecs(final)
    assert densities(*ramp) == [0.25, 0.0629, 0.0158, 0.00398]
    assert all(codec.values == gc.BF16() for codec in ramp)
    assert gc.Warmup(final, epochs=1).codecs(final) == (gc.TopK(0.25, gc.BF16()),)
    none = gc.Warmup(final, epochs=3, start=None).codecs(final)
    assert none == (None, gc.TopK(0.1, gc.BF16()), gc.TopK(0.01, gc.BF16()))


@pytest.mark.parametrize(
    ("bits", "epochs", "start", "ramp"),
    [
        (2, 4, "auto", [8, 8, 4, 4]),
        (2, 1, "auto", [8]),
        (2, 2, 4, [4, 4]),
        (4, 3, "auto", [8, 8, 8]),
        (2, 3, None, [None, 8, 4]),
        (8, 2, "none", [None, None]),
    ],
)
def test_bits_fall(bits, epochs, start, ramp) -> None:
    final = gc.Quantize(bits=bits, block_size=64)
    codecs = gc.Warmup(final, epochs, start).codecs(final)
    assert [c and (c.bits, c.block_size) for c in codecs] == [b and (b, 64) for b in ramp]


@pytest.mark.parametrize("codec", [gc.FP8(), gc.Sign()])
def test_other_codecs_may_begin_uncompressed(codec: gc.Codec) -> None:
    assert gc.Warmup(codec, epochs=2, start="none").codecs(codec) == (None, None)


def test_every_codec_of_a_policy_that_start_applies_to_warms_up() -> None:
    policy = gc.Policy(
        gc.TopK(density=0.01),
        rules=[("a/", "quantize:bits=4"), ("b/", "fp16"), ("c/", "identity"), ("d/", None)],
    )
    names = ["a/kernel", "b/kernel", "c/kernel", "d/kernel", "kernel"]
    variables = [SimpleNamespace(path=n, shape=(64, 64), dtype="float32") for n in names]

    def first(start) -> list[str]:
        plan = gc.Warmup(policy, epochs=2, start=start).plan(variables)
        assert [v.codec for v in plan.variables] == [
            v.codec for v in policy.plan(variables).variables
        ]
        return [v.warmup and (v.warmup[0].spec if v.warmup[0] else "none") for v in plan.variables]

    assert first("auto") == ["quantize:bits=8", (), (), (), "topk:density=0.25"]
    assert first(8) == ["quantize:bits=8", (), (), (), ()]
    assert first(0.5) == [(), (), (), (), "topk:density=0.5"]
    assert first("none") == ["none", "none", (), (), "none"]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: gc.Warmup(None), "nothing to begin with in None"),
        (lambda: gc.Warmup("identity"), "nothing to begin with in Identity"),
        (lambda: gc.Warmup("fp16"), r"start='auto'.*FP16\(\).*or leave Warmup out"),
        (lambda: gc.Warmup("sign"), r"start='auto'.*Sign\(.*or leave Warmup out"),
        (lambda: gc.Warmup("auto", start="none"), r"Auto\(.*no stages.*or leave Warmup out"),
        (lambda: gc.Warmup("fp8", start=8), r"start=8.*FP8\("),
        (lambda: gc.Warmup("topk:density=0.5"), "density above"),
        (lambda: gc.Warmup("topk:density=0.01", start=0.005), r"start=0\.005.*density above"),
        (lambda: gc.Warmup("topk:density=0.01", start=0.01), r"start=0\.01.*density above"),
        (lambda: gc.Warmup("topk:density=0.01", start=8), "start=8.*density"),
        (lambda: gc.Warmup("quantize:bits=4", start=0.5), r"start=0\.5.*bits above"),
        (lambda: gc.Warmup("quantize:bits=4", start=4), "start=4.*bits above"),
        (lambda: gc.Warmup("quantize:bits=2", start=6), "start=6.*8, 4 and 2"),
        (lambda: gc.Warmup("topk:density=0.01", start=1.5), r"1\.5.*at most 1"),
        (lambda: gc.Warmup("topk:density=0.01", start=float("nan")), "nan"),
        (lambda: gc.Warmup("topk:density=0.01", start="dense"), "'dense'"),
        (lambda: gc.Warmup("topk:density=0.01", start=True), "True"),
        (lambda: gc.Warmup("topk:density=0.01", epochs=0), "epochs must be at least 1, got 0"),
        (lambda: gc.Warmup("topk:density=0.01", epochs=1.5), r"epochs must be an integer.*1\.5"),
        (lambda: gc.Warmup("top:density=0.01"), "unknown codec 'top'"),
        (lambda: schedule("warmup:epochs=4"), "must read like"),
        (lambda: schedule("warmup:codec=(topk:density=0.01),steps=4"), "steps"),
    ],
)
def test_bad_arguments_are_named(make, told) -> None:
    with pytest.raises(gc.CodecError, match=told):
        make()


def test_a_spec_stands_for_it() -> None:
    made = schedule("warmup:codec=(topk:density=0.001,values=bf16),epochs=3,start=0.5")
    assert made == gc.Warmup(gc.TopK(density=0.001, values=gc.BF16()), epochs=3, start=0.5)
    assert schedule("warmup:codec=fp16,start=none") == gc.Warmup(gc.FP16(), start=None)
    assert schedule(made) is made
    assert schedule("fp16") == gc.Policy("fp16")


@pytest.mark.parametrize(
    "codec",
    [
        gc.TopK(density=0.01),
        gc.Policy("quantize:bits=4", rules=[("head", None)], min_numel=7),
    ],
)
def test_its_config_stands_for_it(codec) -> None:
    made = gc.Warmup(codec, epochs=3, start="none")
    options = Options(made, seed=3)
    back = Options.from_config(json.loads(json.dumps(options.get_config())))
    assert back == options
    assert hash(back) == hash(options)


def test_disabled_it_sends_everything(monkeypatch) -> None:
    monkeypatch.setattr("gradcomp.policy._said_disabled", True)
    monkeypatch.setenv("GRADCOMP_DISABLE", "1")
    variable = SimpleNamespace(path="kernel", shape=(64, 64), dtype="float32")
    plan = gc.Warmup("topk:density=0.01").plan([variable])
    assert plan.warmup_epochs == 0
    assert plan.stage_bytes == (plan.dense_bytes,)


def test_the_plan_tells_the_bytes_of_each_stage() -> None:
    warmup = gc.Warmup(gc.Quantize(bits=2, block_size=32), epochs=3, start="none")
    plan = warm_plan(warmup, 4)
    assert len(plan.stage_bytes) == 4
    assert plan.stage_bytes[0] == plan.dense_bytes
    assert plan.stage_bytes[-1] == plan.sent_bytes
    assert sorted(plan.stage_bytes, reverse=True) == list(plan.stage_bytes)
    told = str(plan)
    assert "instead of" in told
    for sent in plan.stage_bytes:
        assert f"{sent:,}" in told
    # All stages cut alike, so that residuals keep their place.
    for stages in plan.stages:
        for bucket in stages[1:]:
            assert bucket.route == "two_phase"
            for ours, last in zip(bucket.chunks, stages[-1].chunks, strict=True):
                assert (ours.segments == last.segments).all()


def test_among_many_ranks_a_stage_that_would_cost_more_is_dense() -> None:
    final = gc.TopK(density=0.01)
    plan = warm_plan(gc.Warmup(final, epochs=2), 32)
    assert [bucket.route for bucket in plan.stages[0]] == ["dense", "all_gather", "all_gather"]
    # Where even the last one would, there is nothing to warm up.
    beyond = warm_plan(gc.Warmup(final, epochs=2), 2000)
    assert {bucket.route for stages in beyond.stages for bucket in stages} == {"dense"}
    assert all(len(set(map(id, stages))) == 1 for stages in beyond.stages)


def test_ranks_that_disagree_are_told() -> None:
    from gradcomp.reducer import Reducer

    final = gc.TopK(density=0.01)

    def work(rank):
        start = 0.25 if rank.rank else 0.5
        with pytest.raises(gc.MismatchError, match=r"codec of variable 0.*0\.5.*on rank 0"):
            Reducer(warm_plan(gc.Warmup(final, 1, start), 2), rank, name="test")

    LocalCollective(2).run(work)


def test_a_loop_that_tells_no_epoch_is_warned_once(monkeypatch) -> None:
    from invariants import tensors_of

    from gradcomp.reducer import Reducer

    plan = warm_plan(gc.Warmup(gc.TopK(density=0.01)), 2)

    def work(rank):
        reducer = Reducer(plan, rank, name="test")
        reducer.reduce(tensors_of(rank.rank, 0))
        reducer.reduce(tensors_of(rank.rank, 1))

    with pytest.warns(UserWarning, match=r"gc\.begin_epoch") as caught:
        LocalCollective(2).run(work)
    assert len([w for w in caught if "begin_epoch" in str(w.message)]) == 2


def test_begin_epoch_tells_reducers_that_live_and_that_will(monkeypatch) -> None:
    from gradcomp import live
    from gradcomp.reducer import Reducer

    monkeypatch.setattr(live, "epoch", None)
    plan = warm_plan(gc.Warmup(gc.TopK(density=0.01)), 2)

    def work(rank):
        before = Reducer(plan, rank, name="before")
        rank.all_gather_object(0, name="made")
        if rank.rank == 0:
            gc.begin_epoch(3)
        rank.all_gather_object(0, name="told")
        return before.epoch.read(), Reducer(plan, rank, name="after").epoch.read()

    assert LocalCollective(2).run(work) == [(3, 3), (3, 3)]
    for wrong in (-1, 1.5, True, "2"):
        with pytest.raises(ValueError, match=f"epoch must be .*{wrong!r}"):
            gc.begin_epoch(wrong)
