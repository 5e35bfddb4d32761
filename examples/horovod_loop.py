"""Trains with a loop of its own on several processes: `hvd.DistributedGradientTape`.

horovodrun -np 2 python examples/horovod_loop.py
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf
from images import load_images

import gradcomp as gc
import gradcomp.horovod as hvd


def main() -> None:
    """Trains, checks that ranks agree, and prints on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    arguments = parser.parse_args()

    hvd.init()
    keras.utils.set_random_seed(1 + hvd.rank())
    (x, y), (x_test, y_test) = load_images()
    batches = tf.data.Dataset.from_tensor_slices((x, y)).shard(hvd.size(), hvd.rank())
    batches = batches.shuffle(10_000, seed=1).repeat().batch(32)

    model = keras.Sequential(
        [
            keras.layers.Input(x.shape[1:]),
            keras.layers.Flatten(),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    optimizer.build(model.trainable_variables)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    hvd.broadcast_variables([*model.weights, *optimizer.variables], root_rank=0)

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_fn(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape, compression=gc.TopK(density=0.01))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    for number, (images, labels) in enumerate(batches.take(arguments.steps)):
        loss = step(images, labels)
        if number % 100 == 0:
            mean = hvd.allreduce(loss)
            if hvd.rank() == 0:
                print(f"step {number}: loss {mean:.3f}")
    gc.check_sync(model)
    if hvd.rank() == 0:
        predictions = tf.argmax(model.predict(x_test, verbose=0), axis=1, output_type=tf.int32)
        accuracy = tf.reduce_mean(tf.cast(predictions == y_test, tf.float32))
        print(f"test accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
