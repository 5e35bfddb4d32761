"""Several workers of a MultiWorkerMirroredStrategy, each a process."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import gpu_placement
import keras
import numpy as np
import tensorflow as tf
from reports import exchange_of, lines_about_the_engine, told_of
from scenarios_mirrored import (
    data,
    distributed,
    equal,
    furthest,
    loss,
    model,
    optimizers,
    residuals,
)

import gradcomp as gc
from gradcomp.distribute import lost, workers
from gradcomp.kernels import gpu

TASK = json.loads(os.environ["TF_CONFIG"])
WORKERS, INDEX = len(TASK["cluster"]["worker"]), TASK["task"]["index"]
BATCH = 16
SHARED = sys.argv[2]  # the folder of this launch


def gathered(strategy: Any, value: int) -> list[int]:
    """A small whole number of each worker."""

    def gather() -> tf.Tensor:
        return tf.distribute.get_replica_context().all_gather(tf.constant([value]), axis=0)

    return strategy.run(gather).numpy().tolist()


def workers_agree(strategy: Any, net: keras.Model) -> bool:
    digest = zlib.crc32(b"".join(w.tobytes() for w in net.get_weights())) & 0x7FFFFFFF
    return len(set(gathered(strategy, digest))) == 1


def train(strategy: Any, opt: Callable[[], Any], steps: int = 8) -> keras.Model:
    """An ordinary custom loop on this worker's part of each batch."""
    with strategy.scope():
        net, opt = model(), opt()
        opt.build(net.trainable_variables)
    net.own_optimizer = opt
    per_example = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def one(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(per_example(y, net(x, training=True))) / BATCH
        gradients = tape.gradient(value, [v.value for v in net.trainable_variables])
        opt.apply(gradients, net.trainable_variables)

    step = tf.function(lambda x, y: strategy.run(one, args=(x, y)))
    x, y = data()
    share = BATCH // WORKERS
    for number in range(steps):
        first = number * BATCH % 64 + INDEX * share
        step(x[first : first + share], y[first : first + share])
    return net


def loops(strategy: Any) -> list[str]:
    """Returns the routes that were taken."""
    plain = train(strategy, lambda: optimizers.Adam(0.01))
    exact = train(strategy, distributed(lambda: optimizers.Adam(0.01), "identity"))
    # From three workers on, the order of a ring's additions depends on what travels together.
    assert furthest(exact, plain) <= (0 if WORKERS == 2 else 1e-6)
    routes = []
    for compression in ("topk:density=0.05", gc.Quantize(bits=4, block_size=32), "fp16"):
        net = train(strategy, distributed(lambda: optimizers.Adam(0.01), compression))
        assert workers_agree(strategy, net)
        assert furthest(net, plain) > 0
        assert all(r.any() for r in residuals(net.own_optimizer))
        assert net.own_optimizer.traffic().compression_ratio > 1.3
        routes.append(net.own_optimizer.plan.rows()[0][-1])
    return routes


def gradients_stay_on_the_gpu(strategy: Any) -> list[tuple[set, set, set]]:
    """By codec: where kernels and collectives are, what crosses, what GPUs have no kernel for."""
    told = []
    for compression in ("topk:density=0.05", gc.Quantize(bits=4, block_size=32)):
        with strategy.scope():
            net, opt = model(), distributed(lambda: optimizers.SGD(0.1), compression)()
            opt.build(net.trainable_variables)

        def one(net: Any = net, opt: Any = opt) -> None:
            with tf.device("/GPU:0"):
                gradients = [tf.ones(v.shape) for v in net.trainable_variables]
            opt.apply(gradients, net.trainable_variables)

        with mock.patch.object(gpu, "_loading", gpu.Loading(True)):
            step = tf.function(lambda: strategy.run(one))
            graph = step.get_concrete_function().graph
        told.append(
            (
                gpu_placement.placed(graph, "Gradcomp", "CollectiveGather", "CollectiveAllToAll"),
                {c for c in gpu_placement.crossing(graph) if c[0] != "float32"},
                gpu_placement.without_gpu_kernel(graph),
            )
        )
    return told


def the_report_and_the_engine(strategy: Any) -> list[str]:
    """Returns what was said of the engine."""
    nets = []

    def work() -> None:
        for steps in (2, 0):
            opt = distributed(lambda: optimizers.SGD(0.1), "topk:density=0.05")
            nets.append(train(strategy, opt, steps=steps))

    said = lines_about_the_engine(work)
    told = [list(told_of(net.own_optimizer).values()) for net in nets]
    rank_1 = ("sent dense", "rank 0 or 1, like a bias")
    small = ("sent dense", "fewer elements than min_numel=1024")
    assert told == [[("compressed", ""), rank_1, small, rank_1], [("nothing yet", "")] * 4]
    engine = exchange_of(nets[0].own_optimizer._reducer.name).engine
    assert engine == f"MultiWorkerMirroredStrategy with {WORKERS} replicas on {WORKERS} workers"
    return said


def accumulation_overwriting_and_clipping(strategy: Any) -> None:
    def opt() -> Any:
        return optimizers.AdamW(
            0.01,
            gradient_accumulation_steps=2,
            global_clipnorm=0.1,
            use_ema=True,
            ema_overwrite_frequency=2,
        )

    ours = train(strategy, distributed(opt))
    assert workers_agree(strategy, ours)
    # One process on the whole batches.
    net, alone = model(), opt()
    alone.build(net.trainable_variables)
    x, y = data()
    for number in range(8):
        rows = slice(number * BATCH % 64, number * BATCH % 64 + BATCH)
        with tf.GradientTape() as tape:
            value = loss()(y[rows], net(x[rows], training=True))
        gradients = tape.gradient(value, [v.value for v in net.trainable_variables])
        alone.apply(gradients, net.trainable_variables)
    assert furthest(ours, net) < 2e-6


def dataset() -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    x, y = data()
    return tf.data.Dataset.from_tensor_slices((x[:64], y[:64])).batch(BATCH).with_options(options)


def compiled(strategy: Any, compression: Any, **options: Any) -> keras.Model:
    with strategy.scope():
        net = model()
        opt = gc.DistributedOptimizer(optimizers.Adam(0.01), compression)
        net.compile(opt, loss(), metrics=["accuracy"], **options)
    return net


def fit_says_what_is_missing(strategy: Any) -> str:
    net = compiled(strategy, "fp16")
    try:
        net.fit(dataset(), verbose=0, shuffle=False)
    except RuntimeError as error:
        return str(error)
    raise AssertionError("fit went on")


def fit_evaluate_and_predict(strategy: Any) -> dict[str, Any]:
    told = {}
    with tempfile.TemporaryDirectory() as folder:
        for executions in (1, 3):
            net = gc.prepare(compiled(strategy, "identity", steps_per_execution=executions))
            assert gc.prepare(net) is net
            history = net.fit(
                dataset(),
                epochs=3,
                verbose=0,
                shuffle=False,
                validation_data=dataset(),
                callbacks=[
                    keras.callbacks.ModelCheckpoint(f"{folder}/{{epoch}}.keras"),
                    keras.callbacks.BackupAndRestore(f"{folder}/backup{executions}"),
                    keras.callbacks.CSVLogger(f"{folder}/log.csv"),
                    keras.callbacks.EarlyStopping("loss", patience=2),
                    keras.callbacks.ReduceLROnPlateau("loss"),
                ],
            ).history
            told[executions] = history["loss"], history["val_loss"], history["val_accuracy"]
            assert (Path(folder) / "3.keras").exists()
            assert len((Path(folder) / "log.csv").read_text().splitlines()) == 4
        assert workers_agree(strategy, net)
        assert net.predict(data()[0][:8], verbose=0).shape == (8, 4)
        x, y = data()
        before = net.evaluate(dataset(), verbose=0)
        net.train_on_batch(x[:BATCH], y[:BATCH])
        assert net.evaluate(dataset(), verbose=0) != before
        loaded = keras.models.load_model(f"{folder}/3.keras")
        assert type(loaded) is keras.Sequential
    assert told[1] == told[3]
    # Ours is what one process does with the whole batches.
    alone = model()
    alone.compile(optimizers.Adam(0.01), loss(), metrics=["accuracy"])
    x, y = data()
    history = alone.fit(
        x[:64], y[:64], batch_size=BATCH, epochs=3, verbose=0, shuffle=False
    ).history
    np.testing.assert_allclose(told[1][0], history["loss"], rtol=1e-5)
    return told


def one_worker_overflows(strategy: Any) -> tuple[int, float]:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        net = gc.prepare(compiled(strategy, "topk:density=0.05"))
    finally:
        keras.config.set_dtype_policy("float32")
    assert type(net.optimizer) is gc.LossScaleOptimizer
    x, y = (a[:64].copy() for a in data())
    x[BATCH + BATCH // 2 + 1] = 1e30  # in the second batch, of a worker other than the first
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).with_options(options)
    net.fit(batches, verbose=0, shuffle=False)
    assert all(np.isfinite(w).all() for w in net.get_weights())
    assert all(np.isfinite(r).all() for r in residuals(net.optimizer))
    assert workers_agree(strategy, net)
    steps = net.optimizer.traffic().steps
    return steps, float(net.optimizer.dynamic_scale.numpy())


def disagreement_is_told_on_all(strategy: Any) -> str:
    bits = 4 if INDEX == 0 else 8
    try:
        train(strategy, distributed(lambda: optimizers.SGD(0.1), gc.Quantize(bits=bits)))
    except gc.MismatchError as error:
        return str(error)
    raise AssertionError("workers went on")


def state_of_all_workers_goes_on_bit_for_bit(strategy: Any) -> None:
    """By `gc.save_state`, into one folder; and by a checkpoint of the first worker, read by all."""
    compression = gc.Quantize(bits=4, block_size=32)
    net = gc.prepare(compiled(strategy, compression))
    net.fit(dataset(), verbose=0, shuffle=False)
    kept = residuals(net.optimizer)
    assert all(r.any() for r in kept)
    with tempfile.TemporaryDirectory() as folder:
        together = Path(SHARED) / "state"
        gc.save_state(together, model=net)
        gc.check_sync(net)
        mine = tf.train.Checkpoint(net=net, opt=net.optimizer).save(f"{folder}/checkpoint")
        chief = Path(SHARED) / "checkpoint"
        if INDEX == 0:
            shutil.copytree(folder, chief)
        gathered(strategy, 0)  # the others wait for the copy
        net.fit(dataset(), verbose=0, shuffle=False)
        expected = net.get_weights()
        assert gc.restore_state(together, model=net) is not None
        assert equal(kept, residuals(net.optimizer))
        net.fit(dataset(), verbose=0, shuffle=False)
        assert equal(expected, net.get_weights())
        path = str(chief / Path(mine).name)
        tf.train.Checkpoint(net=net, opt=net.optimizer).restore(path)
        assert equal(kept, residuals(net.optimizer))
        net.fit(dataset(), verbose=0, shuffle=False)
        assert equal(expected, net.get_weights())


class Die(keras.callbacks.Callback):
    """Ends a worker's process after so many batches, in the middle of an epoch."""

    def __init__(self, worker: int, after: int) -> None:
        super().__init__()
        self.left = after if worker == INDEX else -1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def a_death_is_told_to_all_others(strategy: Any) -> tuple[str, str]:
    """Comes last: nothing can be exchanged afterwards. Returns the error and its cause."""
    net = gc.prepare(compiled(strategy, gc.Quantize(bits=4, block_size=32)))
    try:
        net.fit(dataset(), epochs=3, verbose=0, shuffle=False, callbacks=[Die(WORKERS - 1, 6)])
    except gc.WorkerLostError as error:
        return str(error), type(error.__cause__).__name__
    raise AssertionError("fit went on")


def a_worker_that_stays_away_is_told(strategy: Any) -> str | None:
    """Comes last: nothing can be exchanged afterwards."""
    over = Path(SHARED) / "over"
    if INDEX == 1:
        while not over.exists():
            time.sleep(0.1)
        return None
    workers.TIMEOUT_S = 3.0
    collective = workers.WorkersCollective(strategy, INDEX)
    reduce = functools.partial(collective.all_reduce, [tf.ones(4)], average=False, name="alone")
    try:
        with lost.told():
            tf.function(lambda: strategy.run(reduce))()
    except gc.WorkerLostError as error:
        return str(error)
    finally:
        over.touch()
    raise AssertionError("the sum came to an end")


ALL = (
    loops,
    gradients_stay_on_the_gpu,
    the_report_and_the_engine,
    accumulation_overwriting_and_clipping,
    fit_says_what_is_missing,
    fit_evaluate_and_predict,
    state_of_all_workers_goes_on_bit_for_bit,
    one_worker_overflows,
    disagreement_is_told_on_all,
    a_worker_that_stays_away_is_told,
)
OF_FOUR = (
    loops,
    gradients_stay_on_the_gpu,
    the_report_and_the_engine,
    accumulation_overwriting_and_clipping,
    a_death_is_told_to_all_others,
)
SCENARIOS = {s.__name__: s for s in (ALL if WORKERS == 2 else OF_FOUR)}
