"""One training to an accuracy, in a process of its own; writes one line of JSON at its end."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# The same run on every machine, whatever else it does.
os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_NUM_INTRAOP_THREADS="1", OMP_NUM_THREADS="1")

import keras
import numpy as np
import tensorflow as tf

import gradcomp as gc
from bench.activations.models import L
from bench.demo.data import SOURCES
from bench.demo.network import batches, convolutional_network, learning_rate

_LENGTH = 64
_TEXT_BYTES = 1_000_000
_EPOCHS = 2  # of images
_TEST_SHARE = 20  # one part of so many


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parse(argv)
    keras.utils.set_random_seed(arguments.seed)
    task = _images if arguments.task == "images" else _text
    model, train, test, epochs = task(arguments)
    first = [np.asarray(part) for part in next(iter(train))]
    start = _digest([*model.get_weights(), *first])
    if arguments.codec != "none":
        # The layers themselves, so that what was compiled stays.
        gc.pack_model(model, [(".", arguments.codec)])
    model.fit(train, epochs=epochs, shuffle=False, verbose=0)
    loss, accuracy = model.evaluate(test, verbose=0)
    score = 100 * accuracy if arguments.task == "images" else -loss
    print(json.dumps({"score": score, "start": start, "steps": epochs * len(train)}), flush=True)


def _images(arguments: Any) -> tuple[Any, Any, Any, int]:
    images = SOURCES[arguments.data]()
    epochs = 1 if arguments.quick else _EPOCHS
    train = batches(images.x_train, images.y_train, images.batch_size, arguments.seed)
    model = convolutional_network(images.x_train.shape[1:])
    rate = learning_rate(epochs * len(train), images.batch_size)
    _compile(model, keras.optimizers.SGD(rate, momentum=0.9))
    test = tf.data.Dataset.from_tensor_slices((images.x_test, images.y_test)).batch(500)
    return model, train, test, epochs


def _text(arguments: Any) -> tuple[Any, Any, Any, int]:
    """Predicts each character of sources from those before it."""
    text = _sources(_TEXT_BYTES // (20 if arguments.quick else 1))
    rows = text[: len(text) // _LENGTH * _LENGTH].reshape(-1, _LENGTH).astype(np.int32)
    # Test rows are taken from all over the text, whose files differ.
    tested = np.arange(len(rows)) % _TEST_SHARE == 0
    x, y = rows[:, :-1], rows[:, 1:]
    train = batches(x[~tested], y[~tested], 64, arguments.seed)
    model = _language_model(_LENGTH - 1)
    _compile(model, keras.optimizers.Adam(1e-3))
    test = tf.data.Dataset.from_tensor_slices((x[tested], y[tested])).batch(64)
    return model, train, test, 1


def _language_model(length: int, width: int = 64) -> Any:
    tokens = keras.Input((length,), dtype="int32")
    x = L.Embedding(256, width)(tokens)
    x = x + L.Embedding(length, width)(keras.ops.arange(length))
    for _ in range(2):
        y = L.LayerNormalization()(x)
        x = x + L.MultiHeadAttention(4, width // 4)(y, y, use_causal_mask=True)
        y = L.Dense(4 * width, activation="gelu")(L.LayerNormalization()(x))
        x = x + L.Dropout(0.1)(L.Dense(width)(y))
    return keras.Model(tokens, L.Dense(256)(L.LayerNormalization()(x)))


def _sources(size: int) -> np.ndarray:
    """uint8 [size]: the first bytes of the standard library's modules, in order of their names."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return np.frombuffer(b"".join(f.read_bytes() for f in files)[:size], np.uint8)


def _compile(model: Any, optimizer: Any) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)


def _digest(arrays: Sequence[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.activations.learn", description=__doc__)
    parser.add_argument("--task", choices=("images", "text"), default="images")
    parser.add_argument("--codec", default="none", help="what activations are packed with")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", choices=list(SOURCES), default="digits")
    parser.add_argument("--quick", action="store_true", help="a few steps")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
