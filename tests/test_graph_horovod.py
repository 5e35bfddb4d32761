"""The traced step: one op a bucket and phase, and payloads only in the collectives, at N = 4."""

import pytest
from ranks import launch, values
from scenarios_graph import SPECS

from gradcomp.bucket import sent_bytes

RANKS = 4


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return launch("scenarios_graph", RANKS, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("spec", SPECS)
def test_collectives_are_given_payload_bytes(outcomes, spec) -> None:
    for rank, told in enumerate(values(outcomes, "collectives_carry_payloads", RANKS)):
        variables = 7
        # Which variables have a gradient: one flag each.
        expected = [("HorovodGroupedAllreduce", [("float32", 4 * variables)])]
        for route, raw, payload, chunks in told[spec]["buckets"]:
            if route == "all_gather":
                expected.append(("HorovodAllgather", [("uint8", payload)]))
            elif route == "two_phase":
                # The splits go along as one int32 a rank.
                expected.append(("HorovodAlltoall", [("uint8", sum(chunks)), ("int32", 4 * RANKS)]))
                expected.append(("HorovodAllgather", [("uint8", chunks[rank])]))
            else:
                # A group of float32 tensors: nothing else in the step is sent as floats.
                found = [c for c in told[spec]["collectives"] if c[0] == "HorovodGroupedAllreduce"]
                group = next(g for g in found if sum(size for _, size in g[1]) == raw)
                assert {dtype for dtype, _ in group[1]} == {"float32"}
                expected.append(group)
        assert sorted(expected) == sorted(told[spec]["collectives"])


@pytest.mark.parametrize(
    ("spec", "route"),
    [("topk:density=0.01", "all_gather"), ("quantize:bits=4", "two_phase"), ("none", "dense")],
)
def test_bytes_sent_by_a_rank_follow_from_the_graph(outcomes, spec, route) -> None:
    ranks = values(outcomes, "collectives_carry_payloads", RANKS)
    sent = []
    for told in ranks:
        total = 0
        for kind, inputs in told[spec]["collectives"]:
            size = inputs[0][1] if kind != "HorovodGroupedAllreduce" else sum(b for _, b in inputs)
            factor = {"HorovodAllgather": RANKS - 1, "HorovodAlltoall": (RANKS - 1) / RANKS}
            total += size * factor.get(kind, 2 * (RANKS - 1) / RANKS)
        sent.append(total)
    buckets = ranks[0][spec]["buckets"]
    assert route in {b[0] for b in buckets}
    flags = sent_bytes("dense", RANKS, 4 * 7, 0)
    planned = flags + sum(sent_bytes(b[0], RANKS, b[1], b[2]) for b in buckets)
    assert sum(sent) / RANKS == pytest.approx(planned, rel=0.01)


@pytest.mark.parametrize("spec", ["quantize:bits=4", "topk:density=0.01"])
def test_one_op_a_bucket_and_phase(outcomes, spec) -> None:
    for told in values(outcomes, "one_op_a_bucket_and_phase", RANKS):
        routes, ops = told[spec]["routes"], told[spec]["ops"]
        compressed = routes["all_gather"] + routes["two_phase"]
        assert compressed == 4
        assert ops["GradcompEncode"] == compressed
        assert ops["GradcompDecode"] == compressed
        assert ops.get("GradcompReduce", 0) == routes["two_phase"]
        assert ops["HorovodAllgather"] == compressed
        assert ops.get("HorovodAlltoall", 0) == routes["two_phase"]
        assert ops["HorovodGroupedAllreduce"] == 2  # dense gradients, and the flags
        assert told[spec]["copies"] == {}


@pytest.mark.parametrize("nccl", [False, True], ids=["without NCCL", "with NCCL"])
@pytest.mark.parametrize("spec", ["quantize:bits=4", "topk:density=0.01"])
def test_with_gpu_kernels_only_payloads_leave_the_gpu(outcomes, spec, nccl) -> None:
    phases = {"quantize:bits=4": ["Encode", "Reduce", "Decode"]}.get(spec, ["Encode", "Decode"])
    carriers = {"quantize:bits=4": ["Alltoall", "Allgather"]}.get(spec, ["Allgather"])
    for told in values(outcomes, "gradients_stay_on_the_gpu", RANKS):
        found = told[spec, nccl]
        assert found["kernels"] == {(f"Gradcomp{phase}", "/device:GPU:0") for phase in phases}
        where = "/device:GPU:0" if nccl else "/device:CPU:0"
        assert found["carriers"] == {(f"Horovod{carrier}", where) for carrier in carriers}
        payloads = set() if nccl else {("uint8", f"Horovod{carrier}") for carrier in carriers}
        assert found["crossing"] == payloads
        # What the kernels read in host memory is there already.
        assert found["tables"] == {("/device:CPU:0", "int64"), ("/device:CPU:0", "float32")}


def test_a_step_is_traced_once(outcomes) -> None:
    """As without gradcomp: where a trace creates variables, TensorFlow makes a second one."""
    for traces in values(outcomes, "a_step_is_traced_once", RANKS):
        assert traces == {"tape": 1, "fit": 1}
