"""Trains a small convolutional network on images: an ordinary Keras and Horovod script.

What gradcomp adds to such a script is the import and `compression=`. By hand:

    horovodrun -np 2 python -m bench.demo.train --compression topk:density=0.01
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # the same run on every machine

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import gradcomp.horovod as hvd
from bench.demo.data import SOURCES
from bench.demo.recorder import Recorder
from bench.demo.runs import SEED

LEARNING_RATE = 0.025 / 32  # for each image of a step


def convolutional_network(shape: tuple[int, ...]) -> keras.Model:
    """Over 95 % of its parameters are in tensors large enough to be compressed."""
    return keras.Sequential(
        [
            layers.Input(shape),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(96, activation="relu"),
            layers.Dense(10),
        ]
    )


def batches(x: np.ndarray, y: np.ndarray, batch_size: int) -> tf.data.Dataset:
    """Shuffled anew each epoch, in an order that depends on nothing but the seed."""
    images, labels = tf.constant(x), tf.constant(y)
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    order = tf.data.Dataset.range(len(x)).shuffle(len(x), seed=SEED)
    indices = order.batch(batch_size, drop_remainder=True)
    return indices.map(lambda i: (tf.gather(images, i), tf.gather(labels, i))).with_options(options)


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parse(argv)
    # One core for each of the processes.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    hvd.init()
    keras.utils.set_random_seed(SEED)
    images = SOURCES[arguments.data]()
    epochs = arguments.epochs or images.epochs
    # Shards of one length: every rank takes the same number of steps.
    shard = slice(hvd.rank(), len(images.y_train) // hvd.size() * hvd.size(), hvd.size())
    train = batches(images.x_train[shard], images.y_train[shard], images.batch_size)
    test = tf.data.Dataset.from_tensor_slices((images.x_test, images.y_test)).batch(500)

    model = convolutional_network(images.x_train.shape[1:])
    # The rate rises over a fifth of the steps: top-k's corrections come late and large, and would
    # do lasting harm at full rate while the weights are still random.
    steps = epochs * len(train)
    warm_up = steps // 5
    rate = keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0,
        decay_steps=steps - warm_up,
        warmup_target=LEARNING_RATE * images.batch_size * hvd.size(),
        warmup_steps=warm_up,
    )
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(rate, momentum=0.9),
        compression=arguments.compression,
        error_feedback=not arguments.no_error_feedback,
    )
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    if arguments.record:
        callbacks.append(Recorder(arguments.record / f"rank-{hvd.rank()}.jsonl", optimizer))
    model.fit(
        train,
        epochs=epochs,
        shuffle=False,  # `train` shuffles
        validation_data=test,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 and not arguments.record else 0,
    )
    if hvd.rank() == 0:
        print(optimizer.plan)
    hvd.shutdown()


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.demo.train")
    parser.add_argument("--compression", default="none", help="a codec, such as quantize:bits=4")
    parser.add_argument("--no-error-feedback", action="store_true")
    parser.add_argument("--data", choices=SOURCES, default="digits")
    parser.add_argument("--epochs", type=int, help="default: as the data set needs")
    parser.add_argument("--record", type=Path, help="folder for what is measured")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
