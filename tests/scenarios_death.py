"""Training in which a worker dies, and which goes on after all workers were started again.

As a program (`python scenarios_death.py WAY FOLDER`) it is the first part: worker 1 dies in `fit`,
worker 0 in a loop of one's own. The scenarios are the second, in the same folder.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import lean
import numpy as np

with lean.importing():
    import keras
    import tensorflow as tf
    from scenarios_mirrored import data, equal, loss, residuals
    from scenarios_workers import BATCH, INDEX, SHARED, WORKERS, Die, dataset

    import gradcomp as gc

EPOCHS, BATCHES = 4, 4
KILLED_AFTER = 2 * BATCHES + 2
STEPS, EVERY, LOOP_KILLED_AFTER = 12, 3, 8
FOLDER = Path(SHARED)


def network(strategy: Any) -> keras.Model:
    """Has statistics of its own on each worker, and gradients that are compressed and dense."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        net = keras.Sequential(
            [
                keras.layers.Input((16,)),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(4),
            ]
        )
        optimizer = gc.DistributedOptimizer(keras.optimizers.Adam(0.01), "topk:density=0.05")
        net.compile(optimizer, loss())
    return gc.prepare(net)


def everything(net: keras.Model) -> dict[str, list[bytes]]:
    variables = [*net.variables, *net.optimizer.variables]
    return {
        "variables": [np.asarray(v.value).tobytes() for v in variables],
        "residuals": [r.tobytes() for r in residuals(net.optimizer)],
    }


def fit(net: keras.Model, backup: str, *callbacks: keras.callbacks.Callback) -> list[int]:
    """As a user's script does; returns the epochs that were run."""
    backup_and_restore = keras.callbacks.BackupAndRestore(FOLDER / f"{backup}{INDEX}")
    history = net.fit(
        dataset(),
        epochs=EPOCHS,
        verbose=0,
        shuffle=False,
        callbacks=[backup_and_restore, *callbacks],
    )
    return history.epoch


def fit_until_a_death(strategy: Any) -> None:
    def keep_the_first(epoch: int, logs: Any) -> None:
        if epoch == 0:
            shutil.copytree(FOLDER / f"backup{INDEX}", FOLDER / f"older{INDEX}")

    keep = keras.callbacks.LambdaCallback(on_epoch_end=keep_the_first)
    save = gc.SaveState(FOLDER / "of_fit", EVERY)
    fit(network(strategy), "backup", keep, save, Die(1, KILLED_AFTER))


def backup_and_restore_goes_on_bit_for_bit(strategy: Any) -> dict[str, Any]:
    told: dict[str, Any] = {}
    net = network(strategy)

    def look(logs: Any) -> None:
        told["restored"] = [r.any() for r in residuals(net.optimizer)]

    told["epochs"] = fit(net, "backup", keras.callbacks.LambdaCallback(on_train_begin=look))
    told["resumed"] = everything(net)
    undisturbed = network(strategy)
    assert fit(undisturbed, "none") == list(range(EPOCHS))
    told["undisturbed"] = everything(undisturbed)
    undisturbed.optimizer.iterations.assign(1)  # as if other weights had been restored
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        undisturbed.fit(dataset(), verbose=0, shuffle=False)
    told["warned"] = [str(w.message) for w in caught if "residuals are newer" in str(w.message)]
    return told


def backups_of_different_epochs_are_refused(strategy: Any) -> str:
    shutil.copytree(FOLDER / f"backup{INDEX}", FOLDER / f"mixed{INDEX}")
    if INDEX == 1:
        shutil.rmtree(FOLDER / "mixed1")
        shutil.copytree(FOLDER / "older1", FOLDER / "mixed1")
    net = network(strategy)
    try:
        fit(net, "mixed")
    except gc.StateError as error:
        told = str(error)
    # What it advises: another worker's backup holds this one's residuals.
    kept = []
    for worker in (INDEX, 1 - INDEX):
        net.load_weights(FOLDER / f"backup{worker}" / "latest.weights.h5")
        kept.append(residuals(net.optimizer))
    assert equal(*kept) and all(r.any() for r in kept[0])
    return told


def loop(strategy: Any, net: keras.Model, done: int, saves: bool = False) -> None:
    """To the end, or to the death of the first worker where this is what `saves`."""
    per_example = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def one(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(per_example(y, net(x, training=True))) / BATCH
        gradients = tape.gradient(value, [v.value for v in net.trainable_variables])
        net.optimizer.apply(gradients, net.trainable_variables)

    step = tf.function(lambda x, y: strategy.run(one, args=(x, y)))
    x, y = data()
    share = BATCH // WORKERS
    while done < STEPS:
        first = done * BATCH % 64 + INDEX * share
        step(x[first : first + share], y[first : first + share])
        done += 1
        if saves and done % EVERY == 0:
            gc.save_state(FOLDER / "state", model=net, step=done)
            checkpoint_of(net, done).save(FOLDER / f"checkpoint{INDEX}" / "at")
        if saves and INDEX == 0 and done == LOOP_KILLED_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)


def checkpoint_of(net: keras.Model, done: int = 0) -> tf.train.Checkpoint:
    return tf.train.Checkpoint(net=net, optimizer=net.optimizer, done=tf.Variable(done))


def built(strategy: Any) -> keras.Model:
    net = network(strategy)
    with strategy.scope():
        net.optimizer.build(net.trainable_variables)
    return net


def loop_until_a_death(strategy: Any) -> None:
    net = built(strategy)
    try:
        loop(strategy, net, 0, saves=True)
    except tf.errors.UnavailableError as error:
        print("the step says:", error, flush=True)
        gc.check_sync(net)


def both_ways_of_a_loop_go_on_bit_for_bit(strategy: Any) -> dict[str, Any]:
    of_state = first(strategy)
    done = [gc.restore_state(FOLDER / "state", model=of_state)]
    undisturbed, of_checkpoint = built(strategy), built(strategy)
    checkpoint = checkpoint_of(of_checkpoint)
    checkpoint.restore(tf.train.latest_checkpoint(FOLDER / f"checkpoint{INDEX}"))
    done.append(int(checkpoint.done))
    restored = [r.any() for net in (of_checkpoint, of_state) for r in residuals(net.optimizer)]
    loop(strategy, undisturbed, 0)
    loop(strategy, of_state, done[0])
    loop(strategy, of_checkpoint, done[1])
    return {
        "done": done,
        "restored": restored,
        "undisturbed": everything(undisturbed),
        "checkpoint": everything(of_checkpoint),
        "state": everything(of_state),
    }


@functools.cache
def first(strategy: Any) -> keras.Model:
    """The first that this process makes: state finds its optimizer by their order."""
    return network(strategy)


def saved_state_of_fit_goes_on_bit_for_bit(strategy: Any) -> dict[str, Any]:
    net = first(strategy)
    done = gc.restore_state(FOLDER / "of_fit", model=net)
    batches = dataset().repeat(EPOCHS).skip(done)
    net.fit(batches, verbose=0, callbacks=[gc.SaveState(FOLDER / "of_fit", EVERY, done=done)])
    return {"done": done, "resumed": everything(net)}


SCENARIOS = {
    s.__name__: s
    for s in (
        both_ways_of_a_loop_go_on_bit_for_bit,
        saved_state_of_fit_goes_on_bit_for_bit,
        backups_of_different_epochs_are_refused,
        backup_and_restore_goes_on_bit_for_bit,
    )
}

if __name__ == "__main__":
    until_a_death = {"fit": fit_until_a_death, "loop": loop_until_a_death}[sys.argv[1]]
    until_a_death(tf.distribute.MultiWorkerMirroredStrategy())
