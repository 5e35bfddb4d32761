"""Small labelled images: Fashion-MNIST where it can be had, else scikit-learn's digits."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
_DOWNLOAD_TIMEOUT_S = 10.0
_DIGITS_TEST_IMAGES = 797


@dataclass(frozen=True)
class Images:
    """A labelled data set, and what the demo asks of a training on it.

    Attributes:
      x_train, x_test: float32 [n, 28, 28, 1] in [0, 1].
      y_train, y_test: int32 [n], labels 0…9.
      epochs: how long to train.
      batch_size: images a process sees in a step.
      min_harm: percentage points of test accuracy that top-k must lose without error feedback.
    """

    name: str
    x_train: NDArray[np.float32]
    y_train: NDArray[np.int32]
    x_test: NDArray[np.float32]
    y_test: NDArray[np.int32]
    epochs: int
    batch_size: int
    min_harm: float


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Reads a gzipped idx file of unsigned bytes, the format in which MNIST is handed out.

    Raises:
      ValueError: it is no such file, or not as long as its header says.
    """
    with gzip.open(path) as file:
        content = file.read()
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise ValueError(f"{path} is not an idx file of unsigned bytes")
    rank = content[3]
    shape = np.frombuffer(content[4 : 4 + 4 * rank], dtype=">u4").astype(np.int64)
    values = np.frombuffer(content[4 + 4 * rank :], dtype=np.uint8)
    if len(shape) != rank or values.size != shape.prod():
        raise ValueError(f"{path} holds {values.size} values, its header says {shape.tolist()}")
    return values.reshape(shape)


def debian_fashion_mnist(folder: Path = DEBIAN_FOLDER) -> Images:
    """Debian's package dataset-fashion-mnist.

    Raises:
      OSError: it is not installed.
      ValueError: it is damaged.
    """
    train, test = (
        (
            read_idx(folder / f"{part}-images-idx3-ubyte.gz"),
            read_idx(folder / f"{part}-labels-idx1-ubyte.gz"),
        )
        for part in ("train", "t10k")
    )
    return _fashion_mnist("Fashion-MNIST (Debian's dataset-fashion-mnist)", train, test)


def keras_fashion_mnist() -> Images:
    """Keras's own copy: from its cache, else downloaded.

    Raises:
      OSError: it is not in the cache and can't be downloaded.
    """
    import keras

    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_DOWNLOAD_TIMEOUT_S)
    try:
        train, test = keras.datasets.fashion_mnist.load_data()
    except Exception as error:  # Keras raises a bare Exception when a download fails
        raise OSError(f"Keras could not fetch Fashion-MNIST: {error}") from error
    finally:
        socket.setdefaulttimeout(before)
    return _fashion_mnist("Fashion-MNIST (Keras's loader)", train, test)


def sklearn_digits() -> Images:
    """The 1,797 digits that scikit-learn carries, enlarged from 8 × 8 to Fashion-MNIST's size."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x = (pixels[order].reshape(-1, 8, 8) / 16).astype(np.float32)
    x = np.pad(x.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))[..., None]
    y = labels[order].astype(np.int32)
    split = len(y) - _DIGITS_TEST_IMAGES
    train, test = (x[:split], y[:split]), (x[split:], y[split:])
    # So easy that little is lost without feedback too.
    return Images("digits (scikit-learn)", *train, *test, epochs=30, batch_size=32, min_harm=0.5)


# In order of preference.
SOURCES: dict[str, Callable[[], Images]] = {
    "debian": debian_fashion_mnist,
    "keras": keras_fashion_mnist,
    "digits": sklearn_digits,
}


def find_source() -> str:
    """The first of `SOURCES` that can be loaded on this machine."""
    for source, load in SOURCES.items():
        try:
            load()
        except OSError:
            continue
        return source
    raise AssertionError("the digits come with scikit-learn and are always there")


def _fashion_mnist(
    name: str,
    train: tuple[NDArray[np.uint8], NDArray[np.uint8]],
    test: tuple[NDArray[np.uint8], NDArray[np.uint8]],
) -> Images:
    arrays = (*_as_floats(*train), *_as_floats(*test))
    return Images(name, *arrays, epochs=4, batch_size=64, min_harm=1.5)


def _as_floats(
    pixels: NDArray[np.uint8], labels: NDArray[np.uint8]
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    return pixels[..., None].astype(np.float32) / np.float32(255), labels.astype(np.int32)
