"""Trains with a loop of its own on the replicas of one process: `gc.DistributedOptimizer`.

python examples/mirrored_loop.py
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf
from images import load_images
from mirrored_fit import replicas

import gradcomp as gc


def main() -> None:
    """Trains and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    arguments = parser.parse_args()

    keras.utils.set_random_seed(1)
    (x, y), (x_test, y_test) = load_images()
    strategy = tf.distribute.MirroredStrategy(replicas())
    batch = 64
    batches = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(10_000, seed=1).repeat()
    batches = strategy.experimental_distribute_dataset(batches.batch(batch))
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input(x.shape[1:]),
                keras.layers.Flatten(),
                keras.layers.Dense(256, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        optimizer = gc.DistributedOptimizer(
            keras.optimizers.SGD(0.05, momentum=0.9), gc.TopK(density=0.01)
        )
        optimizer.build(model.trainable_variables)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def train(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            # Replicas' gradients are summed: each divides by the size of the whole batch.
            loss = tf.reduce_sum(loss_fn(labels, model(images, training=True))) / batch
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        losses = strategy.run(train, args=(images, labels))
        return strategy.reduce("SUM", losses, axis=None)

    for number, (images, labels) in zip(range(arguments.steps), batches, strict=False):
        loss = step(images, labels)
        if number % 100 == 0:
            print(f"step {number}: loss {loss:.3f}")
    predictions = tf.argmax(model.predict(x_test, verbose=0), axis=1, output_type=tf.int32)
    accuracy = tf.reduce_mean(tf.cast(predictions == y_test, tf.float32))
    ratio = optimizer.traffic().compression_ratio
    print(f"test accuracy {accuracy:.3f}, {ratio:.1f} times fewer bytes")


if __name__ == "__main__":
    main()
