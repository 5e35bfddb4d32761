"""`gc.CompressedAllReduce` as `cross_device_ops=`: an unmodified program, compressed gradients."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from scenarios_mirrored import BATCH, LONG, data, furthest, loss, optimizers, replicas_agree

import gradcomp as gc
from gradcomp.kernels import gpu

TOPK = "topk:density=0.05"


def with_hook(ops: Any, devices: int = 2) -> Any:
    names = [f"CPU:{i}" for i in range(devices)]
    return tf.distribute.MirroredStrategy(names, cross_device_ops=ops)


def model(seed: int = 1) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.Input((16,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Dense(4, dtype="float32"),
        ]
    )


def fit(
    strategy: Any,
    opt: Callable[[], Any] = lambda: optimizers.Adam(0.01),
    **options: Any,
) -> keras.Model:
    with strategy.scope():
        net = model()
        net.compile(opt(), loss(), metrics=["accuracy"], **options)
    x, y = data(LONG)
    net.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False)
    return net


def residuals(ops: gc.CompressedAllReduce) -> list[list[np.ndarray]]:
    """Of each optimizer, in the order of their first steps."""
    return [
        [v.numpy() for reducer in reducers.local for v in reducer.residuals.values()]
        for reducers in ops._reducers.values()
    ]


def an_unmodified_fit(_: Any) -> None:
    plain = fit(with_hook(tf.distribute.ReductionToOneDevice()))
    for compression in (None, "identity"):
        assert furthest(fit(with_hook(gc.CompressedAllReduce(compression))), plain) == 0
    for compression in (TOPK, gc.Quantize(bits=4), gc.FP16()):
        ops = gc.CompressedAllReduce(compression)
        net = fit(with_hook(ops), steps_per_execution=2)
        assert furthest(net, plain) > 0
        assert replicas_agree(net)
        (kept,) = residuals(ops)
        assert len(kept) == 2 and all(r.any() for r in kept)
        (traffic,) = ops.traffic()
        assert traffic.steps == -(-LONG // BATCH)
        assert traffic.compression_ratio > 1.5


def all_but_gradients_is_exact(_: Any) -> None:
    """Batch statistics, metrics and own reductions are those of the plain strategy, to the bit."""
    still = lambda: optimizers.SGD(0.0)  # noqa: E731  (weights stay, so that nothing else can differ)
    ops = gc.CompressedAllReduce(TOPK)
    ours, plain = with_hook(ops), with_hook(tf.distribute.ReductionToOneDevice())
    nets = [fit(strategy, still) for strategy in (ours, plain)]
    assert furthest(*nets) == 0
    assert nets[0].layers[1].moving_mean.numpy().any()
    assert nets[0].history.history == nets[1].history.history
    assert residuals(ops)[0][0].any()

    def own() -> list[tf.Tensor]:
        context = tf.distribute.get_replica_context()
        rank = tf.cast(context.replica_id_in_sync_group, tf.float32)
        values = [tf.reshape(tf.range(4096.0), (64, 64)) + rank, tf.ones(3)]
        return context.all_reduce(tf.distribute.ReduceOp.SUM, values)

    results = [tf.function(lambda s=s: s.run(own))() for s in (ours, plain)]
    for a, b in zip(*results, strict=True):
        for one, other in zip(a.values, b.values, strict=True):
            assert np.array_equal(one, other)


def loop(strategy: Any, net: keras.Model, opt: Any, sometimes: bool = False) -> Any:
    """An ordinary custom training step; with `sometimes`, layer 0 has a gradient in some traces."""
    per_example = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def one(x: tf.Tensor, y: tf.Tensor, without: bool) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(per_example(y, net(x, training=True))) / BATCH
        gradients = tape.gradient(value, [v.value for v in net.trainable_variables])
        if without:
            gradients[0] = None
        opt.apply(gradients, net.trainable_variables)
        return value

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor, without: bool) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(one, args=(x, y, without)), axis=None)

    return step


def a_loop_in_which_a_gradient_is_missing_at_times(_: Any) -> None:
    ops = gc.CompressedAllReduce(TOPK)
    strategy = with_hook(ops)
    with strategy.scope():
        net, opt = model(), optimizers.SGD(0.05)
        opt.build(net.trainable_variables)
    step = loop(strategy, net, opt)
    x, y = (a[:BATCH] for a in data())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras tells of the missing gradient
        step(x, y, False)
        (before,) = residuals(ops)
        step(x, y, True)
        (after,) = residuals(ops)
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
        step(x, y, False)
        (last,) = residuals(ops)
    assert not any(np.array_equal(a, b) for a, b in zip(before, last, strict=True))
    assert replicas_agree(net)


def only_payloads_cross_devices(_: Any) -> list[str]:
    """Returns what large floating tensors are used on another device than where they were made."""
    ops = gc.CompressedAllReduce("quantize:bits=4")
    strategy = with_hook(ops)
    with strategy.scope():
        net, opt = model(), optimizers.SGD(0.05)
        opt.build(net.trainable_variables)
    x, y = (tf.constant(a[:BATCH]) for a in data())
    graph = loop(strategy, net, opt).get_concrete_function(x, y, False).graph
    crossings, encoders = [], set()
    for body in [graph, *_bodies(graph)]:
        for op in body.get_operations():
            if op.type == "GradcompEncode":
                encoders.add(op.device[-5:])
            for tensor in op.inputs:
                made, used = tensor.op.device[-5:], op.device[-5:]
                large = (tensor.shape.num_elements() or 0) >= 1024
                if made and used and made != used and large and tensor.dtype.is_floating:
                    crossings.append(f"{tensor.name} of {made} in {op.name} on {used}")
    assert encoders == {"CPU:0", "CPU:1"}
    return crossings


def replicas_use_their_own_gpu(_: Any) -> None:
    """With GPU kernels, where logical CPUs stand in for GPUs: only tables come from the host."""
    strategy = with_hook(gc.CompressedAllReduce("quantize:bits=4"))
    with strategy.scope():
        net, opt = model(), optimizers.SGD(0.05)
        opt.build(net.trainable_variables)
    x, y = (tf.constant(a[:BATCH]) for a in data())
    with mock.patch.object(gpu, "_loading", gpu.Loading(True)):
        graph = loop(strategy, net, opt).get_concrete_function(x, y, False).graph
    seen = set()
    for body in [graph, *_bodies(graph)]:
        for op in body.get_operations():
            if not op.type.startswith("Gradcomp"):
                continue
            seen.add((op.type, op.device[-5:]))
            for tensor in op.inputs:
                in_host_memory = tensor.dtype == tf.int64 or tensor.shape == []
                assert tensor.op.device[-5:] == ("CPU:0" if in_host_memory else op.device[-5:])
    assert seen == {
        (f"Gradcomp{phase}", f"CPU:{replica}")
        for phase in ("Encode", "Decode")
        for replica in (0, 1)
    }


def _bodies(graph: Any) -> list[Any]:
    return [f.graph for f in graph._functions.values() if hasattr(f, "graph")]


def residuals_belong_to_optimizers(_: Any) -> None:
    """Two models, and a new compile, have residuals of their own; checkpoints hold them."""
    ops = gc.CompressedAllReduce(TOPK)
    strategy = with_hook(ops)
    first = fit(strategy)
    kept = residuals(ops)[0]
    second = fit(strategy)
    assert len(residuals(ops)) == 2
    assert all(np.array_equal(a, b) for a, b in zip(kept, residuals(ops)[0], strict=True))
    assert furthest(first, second) == 0  # it began with no residual, too
    with strategy.scope():
        second.compile(optimizers.Adam(0.01), loss())
    x, y = data()
    second.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False)
    latest = residuals(ops)[-1]
    with tempfile.TemporaryDirectory() as folder:
        path = tf.train.Checkpoint(reducer=ops, net=second, opt=second.optimizer).save(
            folder + "/c"
        )
        second.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False)
        expected = second.get_weights()
        tf.train.Checkpoint(reducer=ops, net=second, opt=second.optimizer).restore(path)
        assert all(np.array_equal(a, b) for a, b in zip(latest, residuals(ops)[-1], strict=True))
        second.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False)
        same = zip(expected, second.get_weights(), strict=True)
        assert all(np.array_equal(a, b) for a, b in same)


def a_program_that_starts_again_restores_first(_: Any) -> None:
    ops = gc.CompressedAllReduce(TOPK)
    net = fit(with_hook(ops))
    (kept,) = residuals(ops)
    x, y = data()
    with tempfile.TemporaryDirectory() as folder:
        path = tf.train.Checkpoint(reducer=ops, net=net, opt=net.optimizer).save(folder + "/c")
        net.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False)
        fresh = gc.CompressedAllReduce(TOPK)
        strategy = with_hook(fresh)
        with strategy.scope():
            again = model()
            again.compile(optimizers.Adam(0.01), loss())
            again.optimizer.build(again.trainable_variables)
        tf.train.Checkpoint(reducer=fresh, net=again, opt=again.optimizer).restore(path)
        again.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False)
        assert furthest(again, net) == 0
        assert any(r.any() for r in kept)


def what_cannot_work_says_so(_: Any) -> None:
    try:
        gc.CompressedAllReduce(gc.Policy("fp16", rules=[("dense", None)]))
    except ValueError as error:
        assert "gc.DistributedOptimizer" in str(error)
    else:
        raise AssertionError("rules were taken")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fit(with_hook(gc.CompressedAllReduce(TOPK), devices=1))
    (said,) = [w for w in told if "one replica" in str(w.message)]
    assert "not compressed" in str(said.message)


def our_optimizer_is_not_compressed_twice(_: Any) -> None:
    ops = gc.CompressedAllReduce(TOPK)
    opt = lambda: gc.DistributedOptimizer(optimizers.Adam(0.01), "fp16")  # noqa: E731
    ours = fit(with_hook(ops), opt)
    plain = fit(with_hook(tf.distribute.ReductionToOneDevice()), opt)
    assert furthest(ours, plain) == 0
    assert residuals(ops) == []


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        an_unmodified_fit,
        all_but_gradients_is_exact,
        a_loop_in_which_a_gradient_is_missing_at_times,
        only_payloads_cross_devices,
        replicas_use_their_own_gpu,
        residuals_belong_to_optimizers,
        a_program_that_starts_again_restores_first,
        our_optimizer_is_not_compressed_twice,
        what_cannot_work_says_so,
    )
}
