"""Callbacks, broadcasts of objects and checks of synchrony, as users write them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from scenarios_training import data, loss, model, weights_agree

import gradcomp as gc
import gradcomp.horovod as hvd


def fails(attempt, kind: type[Exception]) -> str:
    try:
        attempt()
    except kind as error:
        return str(error)
    raise AssertionError("it was accepted")


def trained(callbacks: list, opt: keras.optimizers.Optimizer, epochs: int = 2, **compile_options):
    """Fits a model of the same weights everywhere to each rank's own data."""
    net = model(seed=1)
    net.compile(hvd.DistributedOptimizer(opt), loss(), metrics=["accuracy"], **compile_options)
    x, y = data(hvd.rank())
    history = net.fit(
        x, y, batch_size=24, epochs=epochs, verbose=0, callbacks=callbacks, shuffle=False
    )
    return net, history.history


class Rates(keras.callbacks.Callback):
    """Notes the learning rate and velocity with which each batch begins."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []
        self.velocities: list[np.ndarray] = []

    def on_train_batch_begin(self, batch, logs=None) -> None:
        optimizer = self.model.optimizer
        self.rates.append(float(optimizer.learning_rate.numpy()))
        if getattr(optimizer, "momentum", 0):
            self.velocities.append(optimizer.momentums[0].numpy().copy())


def broadcast_starts_from_the_root_and_spares_local_variables() -> None:
    net = model(seed=hvd.rank())
    local = net.layers[-1].bias
    local.assign([hvd.rank(), 7.0])
    opt = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0, momentum=0.9))
    opt.build(net.trainable_variables)
    opt.momentums[0].assign(np.full(opt.momentums[0].shape, float(hvd.rank())))
    net.compile(opt, loss())
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(1, local_variables=[local])
    callback.set_model(net)
    callback.on_train_begin()
    np.testing.assert_array_equal(local.numpy(), [hvd.rank(), 7.0])
    np.testing.assert_array_equal(opt.momentums[0].numpy(), 1.0)
    expected = model(seed=1).get_weights()
    for ours, root in zip(net.get_weights()[:-1], expected[:-1], strict=True):
        np.testing.assert_array_equal(ours, root)
    callback.register_local_var(net.layers[0].kernel)
    assert "must be variables" in fails(lambda: callback.register_local_var(3), ValueError)


def names_that_differ_between_ranks_are_broadcast() -> None:
    """Keras numbers names anew in each process; a rank that made another model has others."""
    for _ in range(hvd.rank()):
        model(seed=0)
    net = model(seed=hvd.rank())
    opt = keras.optimizers.Adam()
    opt.build(net.trainable_variables)
    half = keras.Variable(np.full(5, hvd.rank() + 0.5), dtype="bfloat16", name=f"half{hvd.rank()}")
    flag = tf.Variable(hvd.rank() == 0)
    hvd.broadcast_variables([*net.weights, *opt.variables, half, flag], root_rank=0)
    assert weights_agree(net)
    assert half.numpy().astype(np.float32).tolist() == [0.5] * 5
    assert bool(flag.numpy())
    hvd.broadcast_variables([], root_rank=0)


def broadcasts_of_different_variables_are_refused() -> list[str]:
    shape = (2, 3) if hvd.rank() else (3, 2)
    return [
        fails(
            lambda: hvd.broadcast_variables([tf.zeros([])] * 0 + [tf.Variable(tf.zeros(shape))]),
            gc.MismatchError,
        ),
        fails(
            lambda: hvd.broadcast_variables([tf.Variable(0.0)] * (hvd.rank() + 1)), gc.MismatchError
        ),
    ]


def objects_with_variables_travel() -> None:
    v = keras.Variable([hvd.rank() + 1.0, 2.0])
    tree = {"weights": [v, tf.Variable(hvd.rank())], "epoch": hvd.rank()}
    received = hvd.broadcast_object(tree if hvd.rank() == 1 else None, root_rank=1)
    assert received["weights"][0].tolist() == [2.0, 2.0]
    assert received["weights"][1] == 1
    assert received["epoch"] == 1
    plain = {"epoch": 3}
    assert (hvd.broadcast_object(plain, root_rank=0) is plain) == (hvd.rank() == 0)
    gathered = hvd.allgather_object((hvd.rank(), v))
    assert [rank for rank, _ in gathered] == list(range(hvd.size()))
    assert [values[0] for _, values in gathered] == [1.0 + r for r in range(hvd.size())]
    # Objects of different types, which Horovod would name differently and wait for ever.
    assert hvd.allgather_object(None if hvd.rank() else "a") == ["a"] + [None] * (hvd.size() - 1)


def metrics_are_averaged_for_later_callbacks() -> None:
    class Before(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None) -> None:
            mine.append(dict(logs))

    mine: list[dict] = []
    _, history = trained(
        [Before(), hvd.callbacks.MetricAverageCallback()], keras.optimizers.SGD(0.1)
    )
    everyones = hvd.allgather_object(mine)
    assert everyones[0] != everyones[1]
    for name in ("loss", "accuracy"):
        means = [np.mean([rank[e][name] for rank in everyones]) for e in range(2)]
        np.testing.assert_allclose(history[name], means, rtol=1e-12)
    assert len({str(h) for h in hvd.allgather_object(history)}) == 1


def missing_metrics_are_told_on_all_ranks() -> str:
    callback = hvd.callbacks.MetricAverageCallback()
    logs = {"loss": 1.0} | ({} if hvd.rank() else {"val_loss": 2.0})
    callback.on_epoch_end(0, None)
    return fails(lambda: callback.on_epoch_end(0, logs), gc.MismatchError)


def learning_rate_warms_up() -> None:
    rates = Rates()
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2, verbose=1)
    _, history = trained([warmup, rates], keras.optimizers.SGD(0.1), epochs=3)
    n, steps = hvd.size(), 4
    expected = [0.4 / n * ((i + 1) / steps * (n - 1) / 2 + 1) for i in range(2 * steps)]
    np.testing.assert_allclose(rates.rates, expected + [0.4] * steps, rtol=1e-6)
    np.testing.assert_allclose(history["lr"], [expected[steps - 1], 0.4, 0.4], rtol=1e-6)


def learning_rate_follows_a_schedule() -> None:
    schedule = hvd.callbacks.LearningRateScheduleCallback
    rates = Rates()
    callbacks = [
        schedule(0.1, lambda epoch: epoch + 1, end_epoch=2),
        schedule(0.1, 0.5, start_epoch=2, steps_per_epoch=4, staircase=False),
        rates,
    ]
    trained(callbacks, keras.optimizers.SGD(0.3), epochs=3)
    last = [0.1 * 0.5 ** (i / 4) for i in range(4)]
    np.testing.assert_allclose(rates.rates, [0.1] * 4 + [0.2] * 4 + last, rtol=1e-6)
    own = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))
    assert "give the optimizer a float" in fails(
        lambda: trained([schedule(0.1, 0.5)], own), ValueError
    )
    assert "initial_lr is required" in fails(lambda: schedule(None, 1.0), ValueError)
    blind = schedule(0.1, 1.0, staircase=False)
    blind.set_params({})
    blind.set_model(trained([], keras.optimizers.SGD(0.1), epochs=1)[0])
    assert "pass steps_per_epoch" in fails(blind.on_train_begin, ValueError)


def momentum_is_corrected() -> None:
    """The velocity is scaled by new rate / old rate, once, before the first batch of a new rate."""
    for optimizer in (
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.optimizers.RMSprop(0.1, momentum=0.9),
    ):
        net = model(seed=1)
        optimizer.build(net.trainable_variables)
        velocities = getattr(optimizer, "momentums", None) or optimizer._momentums
        velocities[0].assign(np.ones(velocities[0].shape))
        net.compile(hvd.DistributedOptimizer(optimizer), loss())
        for corrected, expected in ((True, 3.0), (False, 1.0)):
            callback = hvd.callbacks.LearningRateScheduleCallback(
                0.3, 1.0, momentum_correction=corrected
            )
            optimizer.learning_rate = 0.1
            velocities[0].assign(np.ones(velocities[0].shape))
            callback.set_model(net)
            callback.on_train_begin()
            callback.on_epoch_begin(0)
            callback.on_train_batch_begin(0)
            np.testing.assert_allclose(velocities[0].numpy(), expected, rtol=1e-6)
            callback.on_train_batch_begin(0)  # the rate stays, so does the velocity
            np.testing.assert_allclose(velocities[0].numpy(), expected, rtol=1e-6)


def best_model_is_kept_by_rank_0() -> None:
    folder = Path(hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None))
    path = folder / "best.keras"
    best = hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=str(path))
    average = hvd.callbacks.MetricAverageCallback()
    net, history = trained([average, best], keras.optimizers.SGD(0.1), epochs=2)
    hvd.allgather_object(None)
    assert best.best == (min(history["loss"]) if hvd.rank() == 0 else None)
    assert sorted(p.name for p in folder.iterdir()) == ["best.keras"]
    loaded = keras.models.load_model(path)
    for ours, saved in zip(net.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, saved)
    unset = hvd.callbacks.BestModelCheckpoint(save_weights_only=True)
    assert "pass filepath=" in fails(unset.on_train_begin, ValueError)
    unset.filepath = str(folder / "later.weights.h5")
    unset.on_train_begin()


def equal_weights_pass_and_others_are_named() -> str:
    net, _ = trained([gc.CheckSync(every=3)], keras.optimizers.SGD(0.1))
    gc.check_sync(net)
    gc.check_sync([*net.weights, keras.Variable(np.ones(3), dtype="bfloat16"), tf.Variable(1)])
    net.layers[0].kernel.assign_add(np.eye(20, 64) * (hvd.rank() == 1) * 1e-7)
    net.layers[1].bias.assign_add(np.ones(40) * hvd.rank())
    return fails(lambda: gc.check_sync(net), gc.OutOfSyncError)


def statistics_of_each_rank_are_no_difference() -> str:
    net = keras.Sequential([keras.layers.Input((4,)), keras.layers.BatchNormalization()])
    net.layers[0].moving_mean.assign(np.full(4, float(hvd.rank())))
    gc.check_sync(net)
    return fails(lambda: gc.check_sync(net, all_weights=True), gc.OutOfSyncError)


def check_sync_stops_training_in_time() -> list[int]:
    """Steps run when the callback finds ranks that went apart in step 5, checking every 4."""
    seen = []

    class Diverge(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None) -> None:
            seen.append(batch)
            if len(seen) == 5:
                self.model.layers[0].kernel.assign_add(np.full((20, 64), 0.1 * hvd.rank()))

    callbacks = [Diverge(), gc.CheckSync(every=4)]
    fails(lambda: trained(callbacks, keras.optimizers.SGD(0.1), epochs=4), gc.OutOfSyncError)
    assert "at least 1" in fails(lambda: gc.CheckSync(every=0), ValueError)
    several = len(seen)
    seen.clear()
    fails(
        lambda: trained(callbacks, keras.optimizers.SGD(0.1), epochs=9, steps_per_execution=2),
        gc.OutOfSyncError,
    )
    return [several, len(seen)]


def join_is_refused() -> str:
    return fails(hvd.join, NotImplementedError)


SCENARIOS = {
    f.__name__: f
    for f in (
        broadcast_starts_from_the_root_and_spares_local_variables,
        names_that_differ_between_ranks_are_broadcast,
        broadcasts_of_different_variables_are_refused,
        objects_with_variables_travel,
        metrics_are_averaged_for_later_callbacks,
        missing_metrics_are_told_on_all_ranks,
        learning_rate_warms_up,
        learning_rate_follows_a_schedule,
        momentum_is_corrected,
        best_model_is_kept_by_rank_0,
        equal_weights_pass_and_others_are_named,
        statistics_of_each_rank_are_no_difference,
        check_sync_stops_training_in_time,
        join_is_refused,
    )
}
