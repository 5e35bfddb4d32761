"""One training of the comparison, in a process of its own; writes one line of JSON at its end."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Iterable, Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # the same run on every machine

import keras
import numpy as np

import gradcomp as gc
from bench.demo.data import SOURCES
from bench.demo.network import batches, convolutional_network, learning_rate
from bench.replicas import REPLICAS, make_strategy

# What compresses: nothing, gc.DistributedOptimizer, or gc.CompressedAllReduce.
ENGINES = ("plain", "optimizer", "hook")


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parse(argv)
    hook = arguments.engine == "hook"
    # One thread: several trainings run at a time, and each of them can be repeated to the bit.
    strategy = make_strategy(1, gc.CompressedAllReduce(arguments.compression) if hook else None)
    keras.utils.set_random_seed(arguments.seed)
    images = SOURCES[arguments.data]()
    epochs = arguments.epochs or images.epochs
    batch_size = images.batch_size * REPLICAS
    train = batches(images.x_train, images.y_train, batch_size, arguments.seed)
    with strategy.scope():
        model = convolutional_network(images.x_train.shape[1:])
        rate = learning_rate(epochs * len(train), batch_size)
        optimizer = keras.optimizers.SGD(rate, momentum=0.9)
        if arguments.engine == "optimizer":
            optimizer = gc.DistributedOptimizer(optimizer, arguments.compression)
        model.compile(
            optimizer,
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    first = next(iter(batches(images.x_train, images.y_train, batch_size, arguments.seed)))
    start = _digest([*model.get_weights(), *(part.numpy() for part in first)])
    history = model.fit(
        train,
        epochs=epochs,
        shuffle=False,  # `train` shuffles
        validation_data=(images.x_test, images.y_test),
        validation_batch_size=500,
        verbose=0,
    )
    curve = [round(100 * accuracy, 4) for accuracy in history.history["val_accuracy"]]
    record = {
        "data": images.name,
        "steps": epochs * len(train),
        "accuracy": curve[-1],
        "curve": curve,
        "start": start,
        "end": _digest(model.get_weights()),
    }
    print(json.dumps(record), flush=True)


def _digest(arrays: Iterable[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.seeds.train", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default="plain")
    parser.add_argument("--compression", default="none", help="a codec, such as quantize:bits=4")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", choices=SOURCES, default="digits")
    parser.add_argument("--epochs", type=int, help="default: as the data set needs")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
