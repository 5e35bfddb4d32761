"""Trains with Keras's `fit` while workers come and go.

    horovodrun -np 2 --min-num-proc 2 --max-num-proc 4 --host-discovery-script ./hosts.sh \
        python examples/horovod_elastic.py

`hosts.sh` prints the hosts that there are now, one `name:slots` a line. An ordinary elastic Horovod
script: the line marked below is the one that gradcomp changes, and `compression=` is what it adds.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
from images import load_images

import gradcomp.horovod as hvd  # was: import horovod.tensorflow.keras as hvd


def main() -> None:
    """Trains, evaluates on all ranks, and prints on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, help="of the training set; all by default")
    parser.add_argument("--compression", default="quantize:bits=4")
    arguments = parser.parse_args()

    hvd.init()
    (x, y), (x_test, y_test) = load_images(arguments.images)
    model = keras.Sequential(
        [
            keras.layers.Input(x.shape[1:]),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    rate = 0.001
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.Adam(rate * hvd.size()), compression=arguments.compression
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])

    state = hvd.elastic.KerasState(model, batch=0, epoch=0)

    def on_state_reset() -> None:
        optimizer.learning_rate = rate * hvd.size()

    state.register_reset_callbacks([on_state_reset])

    @hvd.elastic.run
    def train(state: Any) -> None:
        # Shards of one length: every rank takes the same number of steps.
        whole = len(y) // hvd.size() * hvd.size()
        shard = slice(hvd.rank(), whole, hvd.size())
        callbacks = [
            hvd.elastic.CommitStateCallback(state, batches_per_commit=20),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state),
        ]
        model.fit(
            x[shard],
            y[shard],
            batch_size=32,
            epochs=arguments.epochs - state.epoch,
            callbacks=callbacks,
            verbose=2 if hvd.rank() == 0 else 0,
        )

    train(state)
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    if hvd.rank() == 0:
        traffic = optimizer.traffic()
        print(f"test accuracy {accuracy:.3f}, {traffic.compression_ratio:.1f} times fewer bytes")


if __name__ == "__main__":
    main()
