"""Small images of ten classes: Fashion-MNIST from Debian's folder, else scikit-learn's digits."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # package dataset-fashion-mnist
Labelled = tuple[NDArray[np.float32], NDArray[np.int32]]


def load_images(limit: int | None = None) -> tuple[Labelled, Labelled]:
    """Returns (images, labels) to train on, and to test with.

    Images are float32 [n, height, width, 1] in [0, 1].

    Args:
      limit: number of images to train on; None for all.
    """
    if FASHION_MNIST.is_dir():
        train, test = (_fashion_mnist(part) for part in ("train", "t10k"))
    else:
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        images = (pixels.reshape(-1, 8, 8, 1) / 16).astype(np.float32)
        labels = labels.astype(np.int32)
        train, test = (images[:1400], labels[:1400]), (images[1400:], labels[1400:])
    return (train[0][:limit], train[1][:limit]), test


def _fashion_mnist(part: str) -> Labelled:
    def read(kind: str, header: int) -> NDArray[Any]:
        with gzip.open(FASHION_MNIST / f"{part}-{kind}-ubyte.gz") as file:
            return np.frombuffer(file.read(), np.uint8, offset=header)

    images = read("images-idx3", 16).reshape(-1, 28, 28, 1)
    return images.astype(np.float32) / np.float32(255), read("labels-idx1", 8).astype(np.int32)
