"""Mixed precision over Horovod: whatever overflows on one rank is skipped on all."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from scenarios_callbacks import fails
from scenarios_training import data, loss, weights_agree

import gradcomp as gc
import gradcomp.horovod as hvd

GUILTY = 1  # the rank whose gradients overflow


def half_model(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.Input((20,)),
            keras.layers.Dense(64, activation="relu", dtype="mixed_float16"),
            keras.layers.Dense(2, dtype="float32"),
        ]
    )


def residuals(opt) -> list[np.ndarray]:
    reducer = opt.inner_optimizer._reducer
    kept = [*reducer.residuals.values(), *reducer.chunk_residuals.values()]
    return [r.numpy().copy() for r in kept]


def state(net, opt) -> list[np.ndarray]:
    """All that a skipped step must leave as it was."""
    inner = [v.numpy().copy() for v in opt.inner_optimizer.variables]
    return [*net.get_weights(), *inner, *residuals(opt), opt.inner_optimizer._reducer.step.numpy()]


def same(before: list, after: list) -> bool:
    return all(np.array_equal(b, a) for b, a in zip(before, after, strict=True))


def the_policy_puts_loss_scaling_around() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        opt = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), compression="quantize:bits=8")
        net = half_model(seed=hvd.rank())
        net.compile(opt, loss())
        assert type(opt) is gc.LossScaleOptimizer
        assert net.optimizer is opt
        x, y = data(hvd.rank())
        broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        history = net.fit(x, y, batch_size=24, epochs=6, verbose=0, callbacks=[broadcast])
        assert history.history["loss"][-1] < 0.8 * history.history["loss"][0]
        assert weights_agree(net)
        assert opt.plan.compressed_numel > 0
        assert opt.traffic().steps == 24
        assert opt.options.policy == gc.Policy("quantize:bits=8")
    finally:
        keras.config.set_dtype_policy("float32")


def stock_loss_scaling_is_put_right_or_refused() -> str:
    stock = keras.optimizers.LossScaleOptimizer
    inside = stock(keras.optimizers.SGD(0.1), initial_scale=64.0, dynamic_growth_steps=7)
    opt = hvd.DistributedOptimizer(inside, compression="fp16")
    assert type(opt) is gc.LossScaleOptimizer
    assert (opt.initial_scale, opt.dynamic_growth_steps) == (64.0, 7)
    # One that has been trained with keeps its scale.
    built = stock(keras.optimizers.SGD(0.1))
    built.build([keras.Variable(np.ones(3))])
    built.dynamic_scale.assign(2.0)
    opt = hvd.DistributedOptimizer(built)
    assert opt.dynamic_scale.numpy() == 2.0
    assert not opt.inner_optimizer._reducer.alone
    for ours in (opt, opt.inner_optimizer):
        assert "wrap it once" in fails(lambda o=ours: hvd.DistributedOptimizer(o), TypeError)
    assert "goes around a distributed" in fails(
        lambda: gc.LossScaleOptimizer(keras.optimizers.SGD(0.1)), TypeError
    )
    # compile() puts Keras's own around an optimizer that was made before the policy was known.
    late = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    keras.config.set_dtype_policy("mixed_float16")
    net = half_model(seed=0)
    keras.config.set_dtype_policy("float32")
    assert "gc.LossScaleOptimizer(opt)" in fails(lambda: net.compile(late, loss()), TypeError)
    return fails(lambda: stock(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))), TypeError)


def one_rank_overflows_a_hundred_times() -> list[float]:
    """Ten times ten overflows on one rank, and ten good steps after each ten."""
    scales = []
    for spec in ("none", "quantize:bits=4", "topk:density=0.05"):
        net = half_model(seed=1)
        inner = keras.optimizers.Adam(0.01, global_clipnorm=1.0)
        opt = gc.LossScaleOptimizer(
            hvd.DistributedOptimizer(inner, compression=spec), dynamic_growth_steps=1
        )
        opt.build(net.trainable_variables)
        x, y = data(hvd.rank())

        @tf.function
        def step(factor, net=net, opt=opt, x=x, y=y):
            with tf.GradientTape() as tape:
                value = loss()(y, net(x, training=True)) * factor
                scaled = opt.scale_loss(value)
            gradients = tape.gradient(scaled, [v.value for v in net.trainable_variables])
            opt.apply(gradients, net.trainable_variables)
            return value

        first = float(step(tf.constant(1.0)))
        skipped = 0
        rounds = 10 if spec == "topk:density=0.05" else 2
        for round_ in range(rounds):
            if spec != "none":
                assert any(np.any(r) for r in residuals(opt))
            before, scale = state(net, opt), float(opt.dynamic_scale.numpy())
            for _ in range(10):
                bad = (np.inf, np.nan)[round_ % 2]
                step(tf.constant(bad if hvd.rank() == GUILTY else 1.0))
                skipped += 1
            assert same(before, state(net, opt)), (spec, round_)
            assert opt.dynamic_scale.numpy() == scale / 2**10
            for _ in range(10):
                last = float(step(tf.constant(1.0)))
            assert opt.dynamic_scale.numpy() == scale
            assert not same(before, state(net, opt))
        assert skipped == 10 * rounds
        assert last < first
        assert weights_agree(net)
        assert opt.traffic().steps == opt.iterations.numpy() == 1 + 10 * rounds
        scales.append(float(opt.dynamic_scale.numpy()))
        counters = hvd.allgather_object((scales[-1], int(opt.step_counter.numpy())))
        assert len(set(counters)) == 1
    return scales


def an_overflow_in_fit_is_skipped_everywhere() -> None:
    x, y = data(hvd.rank())
    if hvd.rank() == GUILTY:
        x[30, 0] = np.inf  # in the second of four batches
    net = half_model(seed=1)
    opt = gc.LossScaleOptimizer(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), compression="quantize:bits=8")
    )
    for executions in (1, 2):
        net.compile(opt, loss(), steps_per_execution=executions)
        net.fit(x, y, batch_size=24, epochs=1, verbose=0, shuffle=False)
    assert opt.iterations.numpy() == opt.traffic().steps == 6
    assert opt.dynamic_scale.numpy() == 2.0**13
    assert all(np.all(np.isfinite(w)) for w in net.get_weights())
    assert weights_agree(net)


def accumulation_and_sparse_gradients_are_scaled_too() -> None:
    keras.utils.set_random_seed(3)
    net = keras.Sequential(
        [keras.layers.Embedding(50, 32), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    inner = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    for optimizer in (inner, keras.optimizers.Adam(0.01)):
        opt = gc.LossScaleOptimizer(hvd.DistributedOptimizer(optimizer, compression="fp16"))
        net.compile(opt, loss())
        words = np.random.default_rng(hvd.rank()).integers(0, 50, (32, 6))
        net.fit(words, words[:, 0] % 2, batch_size=8, epochs=2, verbose=0, shuffle=False)
        assert weights_agree(net)
        assert opt.traffic().steps == (4 if optimizer is inner else 8)


def the_callback_broadcasts_the_scale() -> None:
    net = half_model(seed=hvd.rank())
    opt = gc.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    opt.build(net.trainable_variables)
    opt.dynamic_scale.assign(2.0 ** (3 + hvd.rank()))
    opt.step_counter.assign(5 + hvd.rank())
    net.compile(opt, loss())
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(1)
    callback.set_model(net)
    callback.on_train_begin()
    assert (opt.dynamic_scale.numpy(), opt.step_counter.numpy()) == (16.0, 6)
    warmup = hvd.callbacks.LearningRateScheduleCallback(0.5, 1.0)
    warmup.set_model(net)
    warmup.on_train_begin()
    warmup.on_train_batch_begin(0)
    assert np.isclose(opt.inner_optimizer.learning_rate.numpy(), 0.5)


def saved_and_loaded_with_its_scale() -> None:
    net = half_model(seed=1)
    opt = gc.LossScaleOptimizer(
        hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), compression="quantize:bits=4"),
        dynamic_growth_steps=3,
    )
    net.compile(opt, loss())
    x, y = data(hvd.rank())
    net.fit(x, y, batch_size=24, epochs=1, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "m.keras")
        net.save(path)
        loaded = keras.models.load_model(path)
        told = _load_in_a_fresh_process(path)
    assert type(loaded.optimizer) is gc.LossScaleOptimizer
    assert loaded.optimizer.dynamic_scale.numpy() == 2.0**16
    assert loaded.optimizer.step_counter.numpy() == 1
    assert loaded.optimizer.options == opt.options
    loaded.fit(x, y, batch_size=24, epochs=1, verbose=0)
    assert weights_agree(loaded)
    assert told.split() == ["LossScaleOptimizer", "DistributedAdam", "65536.0", "quantize:bits=4"]


def _load_in_a_fresh_process(path: str) -> str:
    """Loads and evaluates where nothing is to be trained and Horovod is not running."""
    program = (
        "import sys, keras, numpy, gradcomp.horovod; m = keras.models.load_model(sys.argv[1]);"
        "m.evaluate(numpy.zeros((4, 20)), numpy.zeros(4), verbose=0); o = m.optimizer;"
        "print(type(o).__name__, type(o.inner_optimizer).__name__, float(o.dynamic_scale.numpy()),"
        " o.options.policy.default.spec)"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HOROVOD_")}
    done = subprocess.run(
        [sys.executable, "-c", program, path],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def a_tape_with_stock_loss_scaling_comes_to_one_verdict() -> None:
    """Reduced gradients are non-finite on all ranks if they are on one, so all skip."""
    net = half_model(seed=1)
    opt = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), dynamic_growth_steps=2)
    opt.build(net.trainable_variables)
    x, y = data(hvd.rank())

    @tf.function
    def step(factor):
        with tf.GradientTape() as tape:
            scaled = opt.scale_loss(loss()(y, net(x, training=True)) * factor)
        tape = hvd.DistributedGradientTape(
            tape, compression="quantize:bits=4", loss_scale=opt.dynamic_scale
        )
        opt.apply(tape.gradient(scaled, net.trainable_variables), net.trainable_variables)

    from gradcomp.horovod import tape as tape_module

    known = set(tape_module._reducers)
    step(tf.constant(1.0))
    (key,) = set(tape_module._reducers) - known
    reducer = tape_module._reducers[key]
    for i in range(12):
        before = [r.numpy().copy() for r in reducer.residuals.values()]
        weights, scale = net.get_weights(), opt.dynamic_scale.numpy()
        step(tf.constant(np.inf if hvd.rank() == GUILTY and i % 3 == 0 else 1.0))
        after = [r.numpy() for r in reducer.residuals.values()]
        assert same(before, after) == (i % 3 == 0)
        assert same(weights, net.get_weights()) == (i % 3 == 0)
        assert (opt.dynamic_scale.numpy() < scale) == (i % 3 == 0)
        # Residuals are those of unscaled gradients, whatever the scale of up to 2¹⁵.
        assert max(np.abs(r).max() for r in after) < 1
    assert weights_agree(net)
    assert len({float(s) for s in hvd.allgather_object(float(opt.dynamic_scale.numpy()))}) == 1


SCENARIOS = {
    f.__name__: f
    for f in (
        the_policy_puts_loss_scaling_around,
        stock_loss_scaling_is_put_right_or_refused,
        one_rank_overflows_a_hundred_times,
        an_overflow_in_fit_is_skipped_everywhere,
        accumulation_and_sparse_gradients_are_scaled_too,
        the_callback_broadcasts_the_scale,
        saved_and_loaded_with_its_scale,
        a_tape_with_stock_loss_scaling_comes_to_one_verdict,
    )
}
