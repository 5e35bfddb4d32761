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
import tensorflow as tf

import gradcomp.horovod as hvd
from bench.demo.data import SOURCES
from bench.demo.network import batches, convolutional_network, learning_rate
from bench.demo.recorder import Recorder
from bench.demo.runs import SEED


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
    train = batches(images.x_train[shard], images.y_train[shard], images.batch_size, SEED)
    test = tf.data.Dataset.from_tensor_slices((images.x_test, images.y_test)).batch(500)

    model = convolutional_network(images.x_train.shape[1:])
    rate = learning_rate(epochs * len(train), images.batch_size * hvd.size())
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
