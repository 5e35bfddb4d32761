"""Trains a small convolutional network with Keras's `fit` on several processes.

    horovodrun -np 2 python examples/horovod_fit.py

An ordinary Horovod script: the line marked below is the one that gradcomp changes, and
`compression=` is what it adds.
"""

from __future__ import annotations

import argparse
import os

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
    keras.utils.set_random_seed(1 + hvd.rank())
    (x, y), (x_test, y_test) = load_images(arguments.images)
    # Shards of one length: every rank takes the same number of steps.
    whole = len(y) // hvd.size() * hvd.size()
    x, y = x[hvd.rank() : whole : hvd.size()], y[hvd.rank() : whole : hvd.size()]

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
    rate = 0.001 * hvd.size()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.Adam(rate), compression=arguments.compression
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=1),
    ]
    model.fit(
        x,
        y,
        batch_size=32,
        epochs=arguments.epochs,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    if hvd.rank() == 0:
        traffic = optimizer.traffic()
        print(f"test accuracy {accuracy:.3f}, {traffic.compression_ratio:.1f} times fewer bytes")


if __name__ == "__main__":
    main()
