"""Warm-ups and momentum correction as users write them, on real Horovod ranks."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from invariants import TwoPhaseQuantize
from scenarios_training import data, loss, model, weights_agree
from warmup_checks import all_checks

import gradcomp as gc
import gradcomp.horovod as hvd
from gradcomp import live
from gradcomp.horovod.collective import HorovodCollective

FOLDER = Path(os.environ.get("STATE_FOLDER", tempfile.gettempdir()))
STEPS = 4  # an epoch


def fails(attempt, kind: type[Exception] = ValueError) -> str:
    try:
        attempt()
    except kind as error:
        return str(error)
    raise AssertionError("it was accepted")


class Epochs(keras.callbacks.Callback):
    """Notes what each epoch sent, and its stage as it begins and as it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[int] = []
        self.saved: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        reducer = inner(self.model.optimizer)._reducer
        self._before = 0 if reducer is None else reducer.traffic().sent_bytes

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        reducer = inner(self.model.optimizer)._reducer
        self.sent.append(reducer.traffic().sent_bytes - self._before)
        self.saved.append(reducer.epoch.read())


def inner(optimizer: Any) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer)


def network(compression: Any, optimizer: Any = None, seed: int = 1, **options: Any) -> keras.Model:
    net = model(seed)
    optimizer = optimizer or keras.optimizers.Adam(0.01)
    opt = hvd.DistributedOptimizer(optimizer, compression=compression, **options)
    net.compile(opt, loss())
    return net


def fit(net: keras.Model, epochs: int, **options: Any) -> Epochs:
    told = Epochs()
    options.setdefault("callbacks", []).append(told)
    x, y = data(hvd.rank(), rows=24 * STEPS)
    net.fit(x, y, batch_size=24, epochs=epochs, verbose=0, shuffle=False, **options)
    return told


def expected(net: keras.Model, stages: list[int]) -> list[int]:
    """Bytes that all ranks send in an epoch of each of these stages."""
    plan = net.optimizer.plan
    flags = 4 * (len(plan.variables) + plan.warmup_epochs)
    n = hvd.size()
    sent = [plan.stage_bytes[stage] for stage in stages]
    return [STEPS * (n * s + 2 * (n - 1) * flags) for s in sent]


def everyones(counts: list[int]) -> list[int]:
    return [sum(row) for row in zip(*hvd.allgather_object(counts), strict=True)]


def close(counts: list[int], planned: list[int]) -> None:
    # A plan rounds a rank's share down, for each bucket.
    for count, plan in zip(everyones(counts), planned, strict=True):
        assert abs(count - plan) <= 8 * hvd.size() * STEPS, (counts, planned)


def fit_follows_the_epochs_and_traces_once() -> dict[str, Any]:
    told: dict[str, Any] = {}
    for spec, stages in {
        "warmup:codec=(topk:density=0.02),epochs=3,start=0.5": [0, 1, 2, 3, 3],
        "warmup:codec=(quantize:bits=2),epochs=2,start=none": [0, 1, 2, 2, 2],
    }.items():
        traces = []
        net = network(spec)

        def train_step(batch, net=net, step=net.train_step, traces=traces):
            with tf.init_scope():
                traces.append(int(net.optimizer.iterations.numpy()))
            return step(batch)

        net.train_step = train_step
        epochs = fit(net, 5)
        assert weights_agree(net)
        # TensorFlow traces once more after a step that creates variables.
        assert traces in ([0], [0, 0]), traces
        assert epochs.saved == [1, 2, 3, 4, 5]
        close(epochs.sent, expected(net, stages))
        # Another `fit` goes on, whatever number Keras gives its first epoch.
        assert fit(net, 1).saved == [6]
        told[spec] = everyones(epochs.sent)
    net = network("warmup:codec=(topk:density=0.02),epochs=3,start=0.5")
    epochs = fit(net, 4, initial_epoch=2)
    assert epochs.saved == [3, 4]
    close(epochs.sent, expected(net, [2, 3]))
    return told


def a_model_may_have_several_optimizers() -> None:
    class Pair(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.net = model(3)
            made = hvd.DistributedOptimizer(
                keras.optimizers.SGD(0.1), compression=gc.Warmup(gc.TopK(0.05), epochs=2)
            )
            self.second = made
            self.second.build(self.net.trainable_variables)

        def call(self, x):
            return self.net(x)

        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                value = loss()(y, self.net(x))
            variables = self.net.trainable_variables
            self.second.apply(tape.gradient(value, [v.value for v in variables]), variables)
            return {"loss": value}

    pair = Pair()
    pair.compile()
    x, y = data(hvd.rank())
    pair.fit(x, y, epochs=3, verbose=0)
    assert pair.second._reducer.epoch.read() == 3


def mixed_precision_warms_up() -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        net = network(gc.Warmup(gc.TopK(density=0.02), epochs=2))
        assert isinstance(net.optimizer, gc.LossScaleOptimizer)
        epochs = fit(net, 3)
        assert epochs.saved == [1, 2, 3]
        assert sorted(epochs.sent, reverse=True) == epochs.sent
        assert weights_agree(net)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def every_way_to_run_a_step() -> None:
    """Stages change within several steps of one call, on updates only, and eagerly."""
    for sgd, options in (
        (keras.optimizers.SGD(0.1, 0.9), {"steps_per_execution": 2}),
        (keras.optimizers.SGD(0.1, 0.9, gradient_accumulation_steps=2), {}),
        (keras.optimizers.SGD(0.1, 0.9), {"run_eagerly": True}),
    ):
        net = model(seed=4)
        warmup = gc.Warmup(gc.TopK(density=0.02), epochs=2, start="none")
        opt = hvd.DistributedOptimizer(sgd, compression=warmup, error_feedback="momentum")
        net.compile(opt, loss(), **options)
        epochs = fit(net, 3)
        assert epochs.saved == [1, 2, 3]
        sent = everyones(epochs.sent)
        assert sent[0] > 3 * sent[1] > 9 * sent[2] / 2, sent
        assert weights_agree(net)
        assert opt.traffic().steps == 3 * STEPS // (sgd.gradient_accumulation_steps or 1)


def a_compiled_loop_tells_the_epoch() -> None:
    """Ranks tell it at different steps, and switch at the same; a tape, in one trace."""
    net = model(seed=2)
    kernels = net.trainable_variables
    x, y = data(hvd.rank())
    traces = []

    @tf.function
    def step(x, y):
        traces.append(number)
        with tf.GradientTape() as tape:
            value = loss()(y, net(x))
        tape = hvd.DistributedGradientTape(tape, compression=gc.Warmup(gc.TopK(0.02), epochs=2))
        for v, g in zip(kernels, tape.gradient(value, kernels), strict=True):
            v.assign_sub(0.1 * g)

    from gradcomp.horovod import tape as tape_module

    known = len(tape_module._reducers)
    live.epoch = None
    sent = [0]
    stages = [0, 0, 1, 1, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number, epoch in enumerate([0, 1, 1, 2, 2]):
            early = number in (1, 3) and hvd.rank() != 1
            gc.begin_epoch(epoch if early or number not in (1, 3) else epoch - 1)
            step(x, y)
            (reducer,) = list(tape_module._reducers.values())[known:]
            sent.append(reducer.traffic().sent_bytes)
    live.epoch = None
    assert set(traces) == {0}
    assert weights_agree(net)
    plan, n = reducer.plan, hvd.size()
    planned = [
        n * plan.stage_bytes[s] + 2 * (n - 1) * 4 * (len(plan.variables) + 2) for s in stages
    ]
    for count, all_ranks in zip(everyones(list(np.diff(sent))), planned, strict=True):
        assert abs(count - all_ranks) <= 8 * n, (np.diff(sent), planned)


def everything(net: keras.Model) -> list[bytes]:
    reducer = inner(net.optimizer)._reducer
    kept = [reducer.residuals, reducer.chunk_residuals, reducer.velocities]
    variables = [*net.weights, *net.optimizer.variables]
    variables += [v for variables in kept for v in variables.values()]
    return [v.numpy().tobytes() for v in variables] + [b"%d" % reducer.epoch.read()]


def it_resumes_in_its_stage_bit_for_bit() -> None:
    """Saved in the second of three stages, in each of the ways; with all kinds of state."""
    warmup = gc.Warmup(
        gc.Policy(
            TwoPhaseQuantize(bits=2, block_size=32), rules=[("bias", gc.TopK(0.1))], min_numel=9
        ),
        epochs=2,
        start="none",
    )

    def make(seed: int) -> keras.Model:
        sgd = keras.optimizers.SGD(0.1, momentum=0.8, nesterov=True, global_clipnorm=1.0)
        return network(warmup, sgd, seed, error_feedback="momentum")

    net = make(1)
    fit(net, 2)
    reducer = net.optimizer._reducer
    assert reducer.epoch.read() == 2
    for kept in (reducer.velocities, reducer.residuals, reducer.chunk_residuals):
        assert kept
        assert all(np.any(v.numpy()) for v in kept.values() if v.shape.num_elements() > 9)
    mine = str(FOLDER / f"warmup{hvd.rank()}")
    net.save(f"{mine}.keras")
    path = tf.train.Checkpoint(model=net, optimizer=net.optimizer).save(mine)
    gc.save_state(FOLDER / "warmup", model=net)
    fit(net, 3, initial_epoch=2)
    end = everything(net)

    def from_keras() -> keras.Model:
        return keras.models.load_model(f"{mine}.keras")

    def from_checkpoint() -> keras.Model:
        other = make(2)
        tf.train.Checkpoint(model=other, optimizer=other.optimizer).restore(path)
        return other

    def from_state() -> keras.Model:
        gc.restore_state(FOLDER / "warmup", model=net)
        assert everything(net) != end
        return net

    for load in (from_keras, from_checkpoint, from_state):
        other = load()
        fit(other, 1)  # whatever number Keras gives the epoch
        assert everything(other) == end, load
    optimizer = net.optimizer
    config = optimizer.get_config()
    assert config["momentum"] == 0.8
    assert config["nesterov"] is True
    assert config["gradcomp"]["error_feedback"] == "momentum"
    assert optimizer.momentum == 0.0
    again = type(optimizer).from_config(optimizer.get_config())
    assert again.options == optimizer.options
    assert again.get_config() == config


def momentum_equals_keras_where_nothing_is_compressed() -> None:
    """The weights of SGD with momentum on the mean, also under a schedule.

    Keras's velocity has the learning rate in it and is corrected by the callback; ours has not.
    """
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 0.3**epoch)
    options = {"error_feedback": "momentum"}
    mine = network(None, keras.optimizers.SGD(0.1, 0.9, nesterov=True), **options)
    usual = network(None, keras.optimizers.SGD(0.1, 0.9, nesterov=True))
    for net in (mine, usual):
        fit(net, 3, callbacks=[schedule])
        assert weights_agree(net)
    for ours, theirs in zip(mine.get_weights(), usual.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6)
    assert mine.optimizer.momentums == []
    assert len(mine.optimizer.variables) < len(usual.optimizer.variables)
    plan = mine.optimizer.plan
    assert plan.residual_bytes == sum(v.raw_bytes for v in plan.variables)
    assert "residuals and velocities take" in str(plan)


def a_built_optimizer_hands_its_velocities_over() -> None:
    nets = [network(None, keras.optimizers.SGD(0.1, 0.9)) for _ in range(2)]
    for net in nets:
        fit(net, 1)
    usual, mine = nets
    sgd = keras.optimizers.SGD(0.1, 0.9)
    sgd.build(mine.trainable_variables)
    for ours, theirs in zip(sgd.variables, mine.optimizer.variables, strict=True):
        ours.assign(theirs)
    mine.compile(hvd.DistributedOptimizer(sgd, error_feedback="momentum"), loss())
    for net in nets:
        fit(net, 1)
    for ours, theirs in zip(mine.get_weights(), usual.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6)
    assert len(sgd.variables) == 2  # iterations and learning rate


def what_momentum_cannot_do_is_refused() -> list[str]:
    def make(optimizer: Any, **options: Any) -> Any:
        return lambda: hvd.DistributedOptimizer(optimizer, compression=gc.TopK(0.01), **options)

    momentum = {"error_feedback": "momentum"}
    told = [
        fails(make(keras.optimizers.Adam(), **momentum)),
        fails(make(keras.optimizers.SGD(0.1), **momentum)),
        fails(make(keras.optimizers.SGD(0.1, 0.9, clipvalue=0.5), **momentum)),
        fails(make(keras.optimizers.SGD(0.1, 0.9), error_feedback="momentums")),
        fails(lambda: hvd.DistributedGradientTape(tf.GradientTape(), **momentum)),
    ]
    table = keras.Variable(np.ones((64, 64), np.float32), name="table")
    opt = make(keras.optimizers.SGD(0.1, 0.9), **momentum)()
    opt.build([table])
    slices = tf.IndexedSlices(tf.ones((1, 64)), tf.constant([hvd.rank()]), tf.constant([64, 64]))
    told.append(fails(lambda: opt.apply([slices], [table])))
    x = tf.ones((64, 64))
    told.append(fails(lambda: hvd.allreduce(x, compression=gc.Warmup(gc.TopK(0.01)))))
    told.append(fails(lambda: hvd.allreduce(x, compression="warmup:codec=fp16,start=none")))
    return told


def momentum_trains_with_every_kind_of_codec() -> dict[str, float]:
    """What is not selected keeps its velocity; the loss falls, and ranks stay equal."""
    told = {}
    for spec in ("topk:density=0.02", "quantize:bits=4", "fp16"):
        net = network(spec, keras.optimizers.SGD(0.05, 0.9), error_feedback="momentum")
        fit(net, 4)
        losses = net.history.history["loss"]
        assert weights_agree(net)
        told[spec] = losses[-1] / losses[0]
    return told


def _checked(check, name):
    return lambda: check(HorovodCollective(), f"test.{name}")


# What takes a sum instead of a mean, and what is eager, threads of one process show as well.
CHECKS = [(n, check) for n, check in all_checks() if "sum" not in n and "eager" not in n]
SCENARIOS = {name: _checked(check, number) for number, (name, check) in enumerate(CHECKS)}
SCENARIOS |= {
    f.__name__: f
    for f in (
        fit_follows_the_epochs_and_traces_once,
        a_model_may_have_several_optimizers,
        mixed_precision_warms_up,
        every_way_to_run_a_step,
        a_compiled_loop_tells_the_epoch,
        it_resumes_in_its_stage_bit_for_bit,
        momentum_equals_keras_where_nothing_is_compressed,
        a_built_optimizer_hands_its_velocities_over,
        what_momentum_cannot_do_is_refused,
        momentum_trains_with_every_kind_of_codec,
    )
}
