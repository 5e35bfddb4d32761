"""Hierarchical exchanges between ranks on two pretended hosts, after what scenarios_ranks does."""

from __future__ import annotations

import os
from typing import Any

import horovod.tensorflow as stock
import keras
import numpy as np
import scenarios_ranks
import tensorflow as tf
from invariants import TwoPhaseQuantize, all_checks, contribution, make_plan
from reports import told_of
from scenarios_auto import the_choice_follows_the_link_in_a_compiled_step
from scenarios_callbacks import fails
from scenarios_training import data, loss, model, weights_agree

import gradcomp as gc
import gradcomp.horovod as hvd
from gradcomp.horovod.collective import HorovodCollective, _hierarchy
from gradcomp.own_state import from_bytes, to_bytes

SGD = keras.optimizers.SGD
TWO_PHASE = TwoPhaseQuantize(bits=4, block_size=32)
# Of the invariants those whose codecs differ in route, and in what they draw at random.
CHECKS = {
    name: check
    for name, check in all_checks(in_turn=True)
    if any(
        spec in name
        for spec in (
            "[none",
            "sparse_gradients",
            "[two-phase-quantize:bits=4",
            "[topk:density=0.01,values=identity",
        )
    )
}


def on_hosts(name: str) -> Any:
    """This rank, as `invariants.make_reducer` takes one that is on a host among others."""
    rank = HorovodCollective()
    plan, rank.levels = _hierarchy(make_plan(None, rank.size), rank, name)
    rank.host_sizes = plan.hosts
    return rank


def leads() -> bool:
    return hvd.local_rank() == 0


def fit_with_every_route() -> dict[str, tuple]:
    """Returns each codec's losses and traffic."""
    told = {}
    for spec in ("none", "topk:density=0.05", TWO_PHASE):
        net = model(seed=hvd.rank())
        opt = hvd.DistributedOptimizer(
            keras.optimizers.Adam(0.03), compression=spec, hierarchical=True, bucket_bytes=3000
        )
        net.compile(opt, loss())
        history = net.fit(
            *data(hvd.rank()),
            batch_size=32,
            epochs=4,
            verbose=0,
            shuffle=False,
            callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
        )
        assert weights_agree(net)
        assert len(opt.plan.buckets) > 1
        kept = [*opt._reducer.residuals.values(), *opt._reducer.chunk_residuals.values()]
        lossy = spec != "none"
        assert bool(kept) == (lossy and leads())
        assert all(np.any(r.numpy()) for r in kept)
        happened = {happened for happened, _ in told_of(opt).values()}
        assert happened == ({"sent dense", "compressed"} if lossy else {"sent dense"})
        assert (opt.plan.residual_bytes > 0) == bool(kept)
        told[str(spec)] = (history.history["loss"], opt.plan, opt.traffic())
    return told


def uncompressed_it_is_the_mean_over_ranks() -> None:
    net = model(seed=1)
    x, y = data(hvd.rank())
    with tf.GradientTape() as tape:
        value = loss()(y, net(x, training=True))
    gradients = tape.gradient(value, [v.value for v in net.trainable_variables])
    for op, factor in ((hvd.Average, 1.0), (hvd.Average, 4.0), (hvd.Sum, 1.0)):
        expected = [stock.allreduce(g, op=op) for g in gradients]
        before = net.get_weights()
        opt = hvd.DistributedOptimizer(
            SGD(0.5), hierarchical=True, op=op, gradient_predivide_factor=factor
        )
        opt.apply(gradients, net.trainable_variables)
        for new, old, mean in zip(net.get_weights(), before, expected, strict=True):
            np.testing.assert_allclose(new, old - 0.5 * mean, atol=1e-6)


def custom_loop_with_none_and_slices() -> None:
    """In a graph: an embedding's slices, and a variable that one rank, not a leader, alone uses."""
    keras.utils.set_random_seed(3)
    table = tf.Variable(tf.ones((50, 40)))
    dense = tf.Variable(tf.ones((40, 40)))
    rare = tf.Variable(tf.ones((40, 40)))
    one = tf.constant(1.0)

    @tf.function
    def step(rows: tf.Tensor) -> list:
        with tf.GradientTape() as tape:
            x = tf.reduce_sum(tf.matmul(tf.gather(table, rows), dense))
            if hvd.rank() == 1:
                x += tf.reduce_sum(rare) * one
        tape = hvd.DistributedGradientTape(tape, compression="quantize:bits=8", hierarchical=True)
        return tape.gradient(x, [table, dense, rare])

    rows = tf.constant([hvd.rank(), 7])
    slices, full, seldom = step(rows)
    assert isinstance(slices, tf.IndexedSlices)
    expected = np.zeros((50, 40))
    expected[: hvd.size()] = 40 / hvd.size()
    expected[7] = 40
    np.testing.assert_allclose(tf.convert_to_tensor(slices), expected, rtol=1e-5)
    np.testing.assert_allclose(full, 2.0, rtol=0.02)
    if seldom is not None:
        np.testing.assert_allclose(seldom, 1 / hvd.size(), rtol=0.02)
    told = hvd.allgather_object([seldom is None] + [t.numpy().tobytes() for t in (full,)])
    assert len({t[1] for t in told}) == 1


def an_overflow_on_a_rank_that_does_not_lead_skips_all() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        opt = hvd.DistributedOptimizer(SGD(1.0), compression="quantize:bits=8", hierarchical=True)
        assert isinstance(opt, gc.LossScaleOptimizer)
        v = keras.Variable(np.zeros((40, 40), np.float32))
        opt.build([v])
        rng = np.random.default_rng(hvd.rank())
        gradient = tf.constant(rng.standard_normal((40, 40)), tf.float32)
        scale = float(opt.dynamic_scale.numpy())
        opt.apply([gradient * scale], [v])
        kept = [r.numpy() for r in opt.inner_optimizer._reducer.residuals.values()]
        assert any(k.any() for k in kept) == leads()
        before = v.numpy()
        bad = np.inf if hvd.rank() == 1 else 1.0
        opt.apply([gradient * scale * bad], [v])
        np.testing.assert_array_equal(v.numpy(), before)
        assert float(opt.dynamic_scale.numpy()) == scale / 2
        for old, new in zip(kept, opt.inner_optimizer._reducer.residuals.values(), strict=True):
            np.testing.assert_array_equal(old, new.numpy())
        assert opt.traffic().steps == 1
    finally:
        keras.config.set_dtype_policy("float32")


def a_warm_up_of_half_precision_begins_uncompressed() -> None:
    """Leaders add float32 residuals to gradients of float16, and the others have none to add."""
    opt = hvd.DistributedOptimizer(
        SGD(1.0),
        compression=gc.Warmup("topk:density=0.05", epochs=1, start="none"),
        hierarchical=True,
    )
    v = keras.Variable(np.zeros((40, 40)), dtype="float16")
    opt.build([v])
    rng = np.random.default_rng(hvd.rank())
    total = np.zeros((40, 40))
    for epoch in (0, 1, 1, 0):
        gc.begin_epoch(epoch)
        gradient = rng.standard_normal((40, 40)).astype(np.float16)
        opt.apply([tf.constant(gradient)], [v])
        total += np.mean(hvd.allgather_object(gradient.astype(np.float64)), axis=0)
        waiting = [r.numpy() for r in opt._reducer.residuals.values()]
        assert any(w.any() for w in waiting) == (epoch == 1 and leads())
    np.testing.assert_allclose(-v.numpy(), total, rtol=0, atol=0.03)
    gc.check_sync([v])


def auto_chooses_for_the_link_between_hosts() -> None:
    fast, slow, again = the_choice_follows_the_link_in_a_compiled_step(hierarchical=True)
    assert fast == again == "none"
    assert "topk:density=0.01" in slow or "quantize:bits=4" in slow


def a_rank_without_the_option_is_found_out() -> str:
    opt = hvd.DistributedOptimizer(
        SGD(1.0), compression="fp16", hierarchical=hvd.rank() != hvd.size() - 1
    )
    variables = [keras.Variable(np.zeros((40, 40), np.float32))]
    return fails(lambda: opt.build(variables), gc.MismatchError)


def state_goes_on_bit_for_bit_and_changes_with_the_option() -> None:
    """The same ranks, each from what it saved itself: hierarchical again, then flat, and back."""

    def make(hierarchical: bool) -> keras.Model:
        net = model(seed=1)
        opt = hvd.DistributedOptimizer(
            keras.optimizers.Adam(0.01), compression=TWO_PHASE, hierarchical=hierarchical
        )
        net.compile(opt, loss())
        opt.build(net.trainable_variables)
        return net

    def fit(net: keras.Model) -> None:
        net.fit(*data(hvd.rank()), batch_size=24, epochs=2, verbose=0, shuffle=False)

    def parts(net: keras.Model) -> list[bytes]:
        reducer = net.optimizer._reducer
        kept = [*reducer.residuals.values(), *reducer.chunk_residuals.values()]
        return [np.asarray(w).tobytes() for w in (*net.get_weights(), *(k.numpy() for k in kept))]

    def waiting(net: keras.Model) -> list[np.ndarray]:
        shapes = [tuple(v.shape) for v in net.trainable_variables]
        everyones = hvd.allgather_object(contribution(net.optimizer._reducer, shapes))
        return [sum(one) for one in zip(*everyones, strict=True)]

    first, again = make(True), make(True)
    fit(first)
    again.set_weights(first.get_weights())
    for ours, theirs in zip(again.optimizer.variables, first.optimizer.variables, strict=True):
        ours.assign(theirs)
    from_bytes(again.optimizer._reducer, to_bytes(first.optimizer._reducer))
    for net in (first, again):
        fit(net)
    assert parts(again) == parts(first)

    last = first
    for hierarchical in (False, True, False):
        net, then = make(hierarchical), waiting(last)
        assert any(w.any() for w in then)
        from_bytes(net.optimizer._reducer, to_bytes(last.optimizer._reducer))
        for now, before in zip(waiting(net), then, strict=True):
            np.testing.assert_allclose(now, before, rtol=0, atol=1e-6)
        assert bool(net.optimizer._reducer.carried) == (hierarchical and not leads())
        fit(net)
        assert weights_agree(net)
        assert not any(v.numpy().any() for v in net.optimizer._reducer.carried.values())
        last = net


def _checked(name: str, number: int) -> Any:
    return lambda: CHECKS[name](on_hosts(f"test.hosts{number}"), f"test.{number}")


OURS = {
    f.__name__: f
    for f in (
        fit_with_every_route,
        uncompressed_it_is_the_mean_over_ranks,
        custom_loop_with_none_and_slices,
        an_overflow_on_a_rank_that_does_not_lead_skips_all,
        a_warm_up_of_half_precision_begins_uncompressed,
        auto_chooses_for_the_link_between_hosts,
        a_rank_without_the_option_is_found_out,
    )
}
# Once, on hosts of unequal sizes, one of which has a rank of each kind and one a leader alone.
UNEQUAL = {name: _checked(name, number) for number, name in enumerate(CHECKS)}
UNEQUAL |= {f.__name__: f for f in (state_goes_on_bit_for_bit_and_changes_with_the_option,)}
SCENARIOS = (
    scenarios_ranks.SCENARIOS | OURS | (UNEQUAL if os.environ.get("RANKS_JOB") == "three" else {})
)
