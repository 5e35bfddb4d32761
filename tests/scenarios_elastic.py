"""What a worker of the elastic jobs does: `python scenarios_elastic.py JOB`.

Each job starts, loses a worker that is killed between two commits, and gets another.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lean
import numpy as np
from elastic import HOSTS, note, pace, set_hosts

with lean.importing():
    import keras
    import tensorflow as tf
    from scenarios_training import data, loss, model

    import gradcomp as gc
    import gradcomp.horovod as hvd
    from gradcomp import live, residuals, succession
    from gradcomp.horovod.collective import HorovodCollective

FOLDER = Path(os.environ["ELASTIC_FOLDER"])
HOST = os.environ["HOROVOD_HOSTNAME"]
VICTIM = HOSTS[1]
PER_COMMIT = 3


def wait_for(workers: int) -> None:
    """Lets Horovod start everywhere at once: its time limit is for a start, too."""
    (FOLDER / f"{HOST}.started").touch()
    while len(list(FOLDER.glob("*.started"))) < workers:
        time.sleep(0.05)


def kept(variables: Any) -> dict[str, Any]:
    """What the only reducer keeps, by the names of a snapshot; weights and where training is."""
    (reducer,) = live.reducers().values()
    snapshot = residuals.take(reducer)
    return {
        "rank": hvd.rank(),
        "size": hvd.size(),
        "name": reducer.name,
        "step": snapshot.description["step"],
        "exchanges": reducer.traffic().steps,
        "chosen": reducer.plan.chosen,
        "bandwidth": None if reducer.chooser is None else reducer.chooser._link.bandwidth,
        "residuals": dict(snapshot.archive),
        "variables": [np.array(v) for v in variables],
    }


def note_saves(state: Any, what: Callable[[], dict[str, Any]]) -> None:
    save = state.save

    def noted() -> None:
        save()
        note("save", **what())

    state.save = noted


class Watch(keras.callbacks.Callback):
    """After each batch: notes it, is killed, asks for another worker, stops."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        time.sleep(0.02)
        note("batch", epoch=self.state.epoch, batch=self.state.batch)
        if HOST == VICTIM and (self.state.epoch, self.state.batch) == (1, 7):
            set_hosts(FOLDER, [f"{host}:1" for host in HOSTS])  # one to take the place
            os.kill(os.getpid(), signal.SIGKILL)
        if self.state.lost and hvd.rank() == 0 and (hvd.size(), self.state.batch) == (2, 8):
            set_hosts(FOLDER, [f"{HOSTS[0]}:2", *(f"{host}:1" for host in HOSTS[1:])])

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training |= hvd.size() == 3


def seem_slow() -> None:
    """Lets exchanges seem to take what a link of `pace(workers)` bytes a second would need."""

    def exchange_time(collective: Any, payload: int, *, name: str) -> float:
        collective.all_gather_object(None, name=name)
        return (collective.size - 1) * (1e-5 + payload / pace(collective.size))

    HorovodCollective.exchange_time = exchange_time


def fit() -> None:
    """`fit` with a `KerasState`: a worker is killed, another takes its place, a third comes.

    The codec of one variable is chosen, by all workers that there are at a time.
    """
    seem_slow()
    net = model(seed=len(HOST) + int(os.environ["HOROVOD_LOCAL_RANK"]))
    auto = gc.Auto(candidates=["quantize:bits=4"])
    rule = (re.escape(net.layers[1].kernel.path), auto)
    policy = gc.Policy("quantize:bits=4", rules=[rule])
    opt = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), compression=policy)
    net.compile(opt, loss())
    state = hvd.elastic.KerasState(net, batch=0, epoch=0, lost=False)
    state.register_reset_callbacks([lambda: note("reset", rank=hvd.rank(), size=hvd.size())])
    variables = [*net.weights, *opt.variables]
    note_saves(state, lambda: {"epoch": state.epoch, "batch": state.batch, **kept(variables)})

    @hvd.elastic.run
    def train(state: Any) -> None:
        note("begin", epoch=state.epoch, batch=state.batch, **kept(variables))
        state.lost = state.epoch > 0
        callbacks = [
            hvd.elastic.CommitStateCallback(state, batches_per_commit=PER_COMMIT),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state),
            Watch(state),
        ]
        net.fit(
            *data(hvd.rank(), 320),
            batch_size=32,
            epochs=100 - state.epoch,
            verbose=0,
            callbacks=callbacks,
        )

    train(state)
    gc.check_sync(variables)
    note("end", size=hvd.size(), steps=int(net.optimizer.iterations.numpy()))


def loop() -> None:
    """A loop of its own under Sum, in two phases: of three workers the first is killed."""
    net = model(seed=len(HOST))
    opt = keras.optimizers.SGD(0.01, momentum=0.9)
    opt.build(net.trainable_variables)
    variables = [*net.weights, *opt.variables]
    state = hvd.elastic.TensorFlowState(variables, step=0)
    rows = data(len(HOST), 320)
    policy = gc.Policy("quantize:bits=8", min_numel=64)

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            value = loss()(y, net(x, training=True))
        tape = hvd.DistributedGradientTape(tape, compression=policy, op=hvd.Sum)
        gradients = tape.gradient(value, net.trainable_variables)
        opt.apply(gradients, net.trainable_variables)

    note_saves(state, lambda: {"number": state.step, **kept(variables)})
    stale = None
    succeed = succession.succeed

    def succeed_and_note(reducer: Any, before: Any) -> None:
        succeed(reducer, before)
        with tf.init_scope():
            note("made", **kept(variables))

    succession.succeed = succeed_and_note

    @hvd.elastic.run
    def train(state: Any) -> None:
        nonlocal stale
        note(
            "begin", number=state.step, size=hvd.size(), variables=[np.array(v) for v in variables]
        )
        if stale is not None:
            try:
                stale(*(tf.constant(part[:32]) for part in rows))
            except tf.errors.InvalidArgumentError as error:
                note("stale", message=error.message)
        compiled = stale = tf.function(step)
        while state.step < 20:
            low = 32 * (state.step % 10)
            compiled(*(tf.constant(part[low : low + 32]) for part in rows))
            state.step += 1
            if state.step % PER_COMMIT == 0:
                state.commit()
            if hvd.size() == 3 and hvd.rank() == 0 and state.step == 8:
                os.kill(os.getpid(), signal.SIGKILL)

    train(state)
    gc.check_sync(variables)
    note("end", size=hvd.size(), steps=state.step)


if __name__ == "__main__":
    if "wait_for" in sys.argv:
        wait_for(int(sys.argv[-1]))
    hvd.init()
    {"fit": fit, "loop": loop}[sys.argv[1]]()
