"""Trains with Keras's `fit` on the replicas of one process.

    python examples/mirrored_fit.py

An ordinary script for MirroredStrategy: the line marked below is the one that gradcomp changes. On
a machine without several GPUs two logical CPU devices stand in for them.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf
from images import load_images

import gradcomp as gc


def replicas() -> list[str]:
    """The devices to train on."""
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) > 1:
        return [f"GPU:{i}" for i in range(len(gpus))]
    (cpu,) = tf.config.list_physical_devices("CPU")
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    return ["CPU:0", "CPU:1"]


def main() -> None:
    """Trains and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, help="of the training set; all by default")
    parser.add_argument("--compression", default="quantize:bits=4")
    arguments = parser.parse_args()

    keras.utils.set_random_seed(1)
    (x, y), (x_test, y_test) = load_images(arguments.images)
    reducer = gc.CompressedAllReduce(arguments.compression)
    # Was: tf.distribute.MirroredStrategy(replicas())
    strategy = tf.distribute.MirroredStrategy(replicas(), cross_device_ops=reducer)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input(x.shape[1:]),
                keras.layers.Flatten(),
                keras.layers.Dense(256, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.001), loss, metrics=["accuracy"])
    model.fit(x, y, batch_size=64, epochs=arguments.epochs, verbose=2)
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    (traffic,) = reducer.traffic()
    print(f"test accuracy {accuracy:.3f}, {traffic.compression_ratio:.1f} times fewer bytes")


if __name__ == "__main__":
    main()
