"""Hierarchical exchanges among local ranks on pretended hosts."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
from hosts import groups, run_on_hosts
from invariants import (
    CODECS,
    SHAPES,
    TwoPhaseQuantize,
    all_checks,
    gradients_of,
    make_plan,
    make_reducer,
    tensors_of,
)

import gradcomp as gc
from gradcomp.bucket import VariableSpec
from gradcomp.collective import LocalCollective
from gradcomp.plan import Plan
from gradcomp.reducer import Reducer

# Identity sums on the host first, so it can't have the engine's own bits.
CHECKS = {n: check for n, check in all_checks(in_turn=True) if n != "identity_is_dense"}
HOSTS = [(2, 2), (1, 3, 2)]
TWO_PHASE = TwoPhaseQuantize(bits=4, block_size=32)


@pytest.mark.parametrize("check", CHECKS)
def test_invariant(check) -> None:
    run_on_hosts((2, 1), lambda rank: CHECKS[check](rank, "test"))


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("codec", [*CODECS, gc.Identity(), None], ids=str)
def test_one_rank_a_host_has_the_bits_of_a_flat_exchange(codec, average) -> None:
    def steps(rank) -> list[bytes]:
        reducer = make_reducer(rank, codec, average=average, seed=3, name="test")
        found = [reducer.reduce(tensors_of(rank.rank, s)).gradients for s in range(3)]
        kept = [*reducer.residuals.values(), *reducer.chunk_residuals.values()]
        return [t.numpy().tobytes() for row in [*found, kept] for t in row]

    assert run_on_hosts((1, 1, 1), steps) == LocalCollective(3).run(steps)


@pytest.mark.parametrize("predivide", [1.0, 3.0])
@pytest.mark.parametrize("hosts", HOSTS, ids=str)
def test_each_ranks_gradient_counts_once_whatever_its_host(hosts, predivide) -> None:
    """The mean over ranks, not over hosts, uncompressed and through 8 bits."""

    def errors(rank) -> list[float]:
        told = []
        for codec in (None, gc.Quantize(bits=8, block_size=32)):
            name = f"test.{codec}"
            reducer = make_reducer(rank, codec, predivide=predivide, name=name)
            reduced = reducer.reduce(tensors_of(rank.rank, 0)).gradients
            mean = [
                np.mean(all_of_one, axis=0)
                for all_of_one in zip(*[gradients_of(r, 0) for r in range(rank.size)], strict=True)
            ]
            told.append(
                max(np.abs(r - m).max(initial=0) for r, m in zip(reduced, mean, strict=True))
            )
        return told

    for dense, quantized in run_on_hosts(hosts, errors):
        assert dense < 1e-6
        assert 0 < quantized < 0.1


@pytest.mark.parametrize("hosts", [(2, 2), (4,), None], ids=str)
def test_predividing_keeps_a_sum_from_overflowing(hosts) -> None:
    def work(rank) -> list[bool]:
        told = []
        for factor in (1.0, 4.0):
            options = {"predivide": factor, "name": f"test.{factor}"}
            reducer = make_reducer(rank, None, **options)
            gradients = [tf.fill(shape, 3e38) for shape in SHAPES]
            reduced = reducer.reduce(gradients).gradients
            told.append(bool(np.isfinite(reduced[0]).all()))
        return told

    run = LocalCollective(4).run if hosts is None else lambda w: run_on_hosts(hosts, w)
    assert run(work) == [[False, True]] * 4


def test_bytes_between_hosts_are_the_leaders_and_local_ones_are_apart() -> None:
    hosts, steps = (3, 2), 4

    def work(rank) -> tuple:
        reducer = make_reducer(rank, gc.Quantize(bits=4), name="test")
        for step in range(steps):
            reducer.reduce(tensors_of(rank.rank, step))
        return reducer.plan, reducer.traffic()

    told = run_on_hosts(hosts, work)
    raw = sum(4 * int(np.prod(shape)) for shape in SHAPES)
    # Flags of presence are all ranks': a ring, whose hosts' last ranks send to the next host.
    flags = 2 * (sum(hosts) - 1) * 4 * len(SHAPES) // sum(hosts)
    for rank, (plan, traffic) in enumerate(told):
        leads, ends = rank in (0, 3), rank in (2, 4)
        size = 3 if rank < 3 else 2
        assert plan.leads == leads
        assert traffic.steps == steps
        assert traffic.sent_bytes == steps * (plan.sent_bytes * leads + flags * ends)
        # A sum is a ring on the host; the leader also gives the result and a verdict to the others.
        results = (size - 1) * (raw + len(plan.buckets)) * leads
        sums = sum(2 * (size - 1) * b.raw_bytes // size for b in plan.buckets)
        assert traffic.local_bytes == steps * (sums + results + flags * (not ends))
        assert traffic.raw_bytes == steps * raw * leads  # 2(N−1)/N of it for two hosts
        assert traffic.compression_ratio > 5 if leads else traffic.compression_ratio == 1.0


def test_a_plan_for_hosts_says_what_each_rank_keeps_and_sends() -> None:
    flat = make_plan(TWO_PHASE, 2)
    leader = Plan(flat.variables, 5, flat.bucket_bytes, hosts=(3, 2))
    other = Plan(flat.variables, 5, flat.bucket_bytes, hosts=(3, 2), leads=False)
    for plan in (leader, other):
        assert (plan.sent_bytes, plan.dense_bytes) == (flat.sent_bytes, flat.dense_bytes)
        assert "between 2 hosts of 3, 2 ranks" in str(plan)
        assert f"first rank of a host sends {flat.sent_bytes:,} bytes a step to other" in str(plan)
    assert leader.residual_bytes == flat.residual_bytes > 0
    assert other.residual_bytes == 0
    assert "residuals take 0 bytes of memory on this rank" in str(other)
    assert "A rank sends" in str(flat)

    def kept(rank) -> tuple[int, int]:
        reducer = make_reducer(rank, TWO_PHASE, name="test")
        variables = [*reducer.residuals.values(), *reducer.chunk_residuals.values()]
        return reducer.plan.residual_bytes, sum(4 * v.shape.num_elements() for v in variables)

    for planned, real in run_on_hosts((3, 2), kept):
        assert planned == pytest.approx(real, rel=0.01)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes_are_summed_wide_and_come_back(dtype) -> None:
    """Two ranks' 40,000 are 80,000, which float16 does not have, and their mean is 40,000."""
    codec = None if dtype == "float64" else gc.Quantize(bits=8)
    variables = [VariableSpec(i, f"v{i}", (40, 40), dtype, c) for i, c in enumerate([codec, None])]

    def work(rank) -> list[tuple]:
        plan = Plan(tuple(variables), 4, hosts=(2, 2), leads=rank.levels.cross is not None)
        told = []
        for average in (True, False):
            reducer = Reducer(
                plan, rank, average=average, levels=rank.levels, name=f"test.{average}"
            )
            reduced = reducer.reduce([tf.cast(tf.fill((40, 40), 40_000.0), dtype)] * 2).gradients
            step = int(reducer.step.numpy())
            told.append(([(r.dtype.name, float(r[3, 5])) for r in reduced], step))
        return told

    all_told = run_on_hosts((2, 2), work)
    assert all(told == all_told[0] for told in all_told)
    (mean, counted), (total, counted_sum) = all_told[0]
    exact = float(tf.cast(tf.cast(40_000.0, dtype), tf.float64))
    assert mean == [(dtype, pytest.approx(exact, rel=0.01))] * 2
    assert counted == 1
    if dtype == "float16":
        assert total == [(dtype, np.inf)] * 2
        assert counted_sum == 0, "a step that overflowed was counted"
    else:
        assert total == [(dtype, pytest.approx(4 * exact, rel=0.01))] * 2


@pytest.mark.parametrize("hosts", [(2, 1), (1, 1), None], ids=str)
@pytest.mark.parametrize("codec", [gc.TopK(density=0.05), TWO_PHASE], ids=str)
def test_narrow_gradients_in_an_uncompressed_epoch_of_a_warm_up(codec, hosts) -> None:
    """Residuals are float32, and only leaders have some: all of a host send the same dtype."""
    shape, size = (40, 40), 3 if hosts is None else sum(hosts)

    def work(rank) -> list[float]:
        v = VariableSpec(0, "v", shape, "float16", codec, warmup=(None,))
        levels = getattr(rank, "levels", None)
        leads = levels is None or levels.cross is not None
        plan = Plan((v,), size, hosts=hosts, leads=leads)
        reducer = Reducer(plan, rank, average=False, levels=levels, name="test")
        given, applied = np.zeros(shape), np.zeros(shape)
        for epoch in (0, 1, 1, 0, 0):
            reducer.epoch.set(epoch)
            mine = np.random.default_rng([rank.rank, epoch]).standard_normal(shape)
            gradient = tf.constant(mine, tf.float16)
            (reduced,) = reducer.reduce([gradient]).gradients
            assert reduced.dtype == tf.float16
            given += gradient.numpy().astype(np.float64)
            applied += reduced.numpy().astype(np.float64)
        assert not any(r.numpy().any() for r in reducer.residuals.values())
        told = rank.all_gather_object((given, applied), name="check")
        assert all(np.array_equal(applied, theirs) for _, theirs in told)
        return float(np.abs(applied - sum(g for g, _ in told)).max())

    run = LocalCollective(size).run if hosts is None else lambda w: run_on_hosts(hosts, w)
    assert max(run(work)) < 0.02  # five roundings to float16 of values up to 10


def test_ranks_that_disagree_about_hosts_all_raise() -> None:
    def work(rank) -> str:
        plan = make_plan(None, 4)
        if rank.rank != 2:
            plan = Plan(plan.variables, 4, plan.bucket_bytes, hosts=(2, 2))
        with pytest.raises(gc.MismatchError) as raised:
            Reducer(plan, rank, name="test")
        return str(raised.value)

    told = set(run_on_hosts((2, 2), work))
    assert len(told) == 1
    assert "hierarchical: True on ranks 0, 1, 3; False on rank 2" in told.pop()


def test_packed_values_keep_bits_and_static_shapes_in_a_graph() -> None:
    from gradcomp.hierarchy import _pack, _unpack

    @tf.function
    def there_and_back(x, y):
        values, finite = _unpack(_pack([x, y], tf.constant(True)), [x, y])
        assert [v.shape for v in values] == [x.shape, y.shape]
        return values, finite

    x = tf.constant([[1.5, -0.0], [np.inf, np.nan]])
    values, finite = there_and_back(x, tf.zeros((0, 4), tf.bfloat16))
    assert values[0].numpy().tobytes() == x.numpy().tobytes()
    assert bool(finite)


def test_groups_are_found_from_horovods_numbers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from gradcomp.horovod.groups import ranks_by_host

    def places(hosts: list[tuple[int, ...]]) -> list[tuple[int, int, int]]:
        """What Horovod tells each rank: cross ranks count the hosts that have the local rank."""
        told = {}
        for host in hosts:
            for local, rank in enumerate(host):
                having = [h for h in hosts if len(h) > local]
                told[rank] = (local, len(host), having.index(host))
        return [told[rank] for rank in sorted(told)]

    for hosts in (
        groups((2, 2)),
        groups((2, 1)),
        groups((1, 2, 3)),
        groups((4,)),
        groups((1, 1, 1)),
        [(0, 2), (1, 3)],  # dealt out, as mpirun --map-by node does
        [(0, 3, 5), (1, 4), (2,)],
    ):
        assert ranks_by_host(places(hosts)) == hosts
    with pytest.raises(RuntimeError, match="rank 1 says that it is local rank 1 of 3"):
        ranks_by_host([(0, 2, 0), (1, 3, 0)])
    with pytest.raises(RuntimeError, match="no host fits"):
        ranks_by_host([(0, 1, 0), (1, 2, 0)])
