"""A training program that every rank can be killed in, and that goes on where it was.

RESUME_KILL says when: "training", in the middle of a step, or "saving", when one rank's file is
written and the other's half written.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from invariants import TwoPhaseQuantize

import gradcomp as gc
import gradcomp.horovod as hvd
from gradcomp import archive, live

EVERY = 3
KILLED_AFTER = 7
STEPS = 12
BATCH = 8

POLICY = gc.Policy(
    TwoPhaseQuantize(bits=4, block_size=32, stochastic=True),
    rules=[("first", gc.TopK(density=0.05))],
    min_numel=16,
)


def network() -> keras.Model:
    """Has state of its own on each rank: moving statistics and the seed of dropout."""
    keras.utils.set_random_seed(11)
    net = keras.Sequential(
        [
            keras.layers.Input((20,)),
            keras.layers.Dense(64, activation="relu", name="first"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2, seed=100 + hvd.rank()),
            keras.layers.Dense(40, activation="relu"),
            keras.layers.Dense(3),
        ]
    )
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), compression=POLICY)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(optimizer, loss, metrics=["accuracy"])
    return net


class Others(keras.callbacks.Callback):
    """A tape and a state of `allreduce` beside the optimizer; both make their reducers late."""

    def __init__(self, done: int) -> None:
        super().__init__()
        self.step = done
        self.variable = tf.Variable(np.ones((40, 40), np.float32))
        self.state = hvd.FeedbackState()
        self.given: dict[int, list[bytes]] = {}

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.step += 1
        gradient = tf.random.stateless_normal((40, 40), [hvd.rank(), self.step])
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(self.variable * gradient)
        tape = hvd.DistributedGradientTape(tape, compression=gc.TopK(density=0.05))
        (reduced,) = tape.gradient(value, [self.variable])
        mean = hvd.allreduce(gradient, compression=gc.TopK(density=0.05), state=self.state)
        self.given[self.step] = [reduced.numpy().tobytes(), mean.numpy().tobytes()]


def program(
    folder: Path, kill: str = "", restored: Callable[[keras.Model], None] | None = None
) -> tuple[int, dict[str, list[Any]]]:
    """Trains to the end; returns the batches done before, and all that came out of it."""
    net = network()
    done = gc.restore_state(folder, model=net) or 0
    if restored is not None:
        restored(net)
    rng = np.random.default_rng(hvd.rank())
    x = rng.standard_normal((STEPS * BATCH, 20)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).skip(done)
    others = Others(done)
    callbacks = [others, gc.SaveState(folder, EVERY, done=done)]
    if kill == "training":
        die_in_training(net)
        callbacks.append(keras.callbacks.LambdaCallback(on_train_batch_end=wait_at_the_end(done)))
    if kill == "saving":
        die_in_the_next_save(folder)
    net.fit(batches, verbose=0, callbacks=callbacks)
    reducer = net.optimizer._reducer
    assert sorted(others.given) == list(range(done + 1, STEPS + 1))
    return done, {
        "weights": [w.tobytes() for w in net.get_weights()],
        "variables": [v.numpy().tobytes() for v in [*net.variables, *net.optimizer.variables]],
        "residuals": [
            variables[key].numpy().tobytes()
            for variables in (reducer.residuals, reducer.chunk_residuals)
            for key in sorted(variables)
        ],
        "others": [others.given[step] for step in range(STEPS - 2, STEPS + 1)],
    }


def die(when: str) -> None:
    """Kills this rank as soon as all ranks are about to be."""
    folder = Path(os.environ["RESUME_FOLDER"])
    (folder / f"{when}{hvd.rank()}").touch()
    while not all((folder / f"{when}{rank}").exists() for rank in range(hvd.size())):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_training(net: keras.Model) -> None:
    """Whatever the rank is doing when the step has been counted."""

    def watch() -> None:
        while int(net.optimizer.iterations.numpy()) < KILLED_AFTER:
            time.sleep(0.001)
        die("training")

    threading.Thread(target=watch, daemon=True).start()


def wait_at_the_end(done: int) -> Callable[[int, Any], None]:
    """The kill may come late on a busy machine: the next save must not come before it."""

    def on_train_batch_end(batch: int, logs: Any) -> None:
        while done + batch + 1 > KILLED_AFTER:
            time.sleep(1)

    return on_train_batch_end


def die_in_the_next_save(folder: Path) -> None:
    """Rank 0 dies when its file has its name, rank 1 with half of its arrays written."""
    replace, write_array = os.replace, np.lib.format.write_array
    arrays = iter(range(10**9))

    def renamed(*names: Any) -> None:
        replace(*names)
        die("saving")

    def written(*args: Any, **options: Any) -> None:
        write_array(*args, **options)
        if next(arrays) == 10:
            args[0]._fileobj.flush()
            while not list(folder.glob("generation-00000003.rank-0-of-2.npz")):
                time.sleep(0.001)
            die("saving")

    if hvd.rank() == 0:
        archive.os.replace = renamed
    else:
        np.lib.format.write_array = written


def resume() -> dict[str, Any]:
    base = Path(os.environ["RESUME_FOLDER"])
    folder = base / "state"
    kill = os.environ["RESUME_KILL"]
    told: dict[str, Any] = {}

    def look(net: keras.Model) -> None:
        reducer = net.optimizer._reducer
        kept = [*reducer.residuals.values(), *reducer.chunk_residuals.values()]
        told["nonzero"] = bool(reducer.chunk_residuals) and all(np.any(v.numpy()) for v in kept)
        # A tape and a state of allreduce come later.
        assert len(live.waiting) == 2

    def zero(net: keras.Model) -> None:
        """The weights are restored; the residuals belong to the first optimizer, not to this."""
        reducer = net.optimizer._reducer
        reducer.step.assign(net.optimizer.iterations.value)
        assert not any(np.any(v.numpy()) for v in reducer.residuals.values())

    if not kill and hvd.rank() == 0:
        shutil.copytree(folder, base / "copy")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        told["done"], told["resumed"] = program(folder, kill, None if kill == "training" else look)
    told["warnings"] = [str(w.message) for w in caught if "generation" in str(w.message)]
    assert not live.waiting
    told["uninterrupted"] = program(base / "uninterrupted")[1]
    told["zeroed"] = program(base / "copy", restored=zero)[1]
    return told


SCENARIOS = {"resume": resume}
