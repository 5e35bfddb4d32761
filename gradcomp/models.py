"""Models whose gradients are known without training: their shapes, by name or from a file."""

from __future__ import annotations

import contextlib
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gradcomp.errors import ModelError
from gradcomp.kernels.libraries import import_tensorflow

Shape = tuple[int, ...]


class Weight(NamedTuple):
    """What a policy asks of a trainable variable."""

    path: str
    shape: Shape
    dtype: str = "float32"


def resnet50() -> list[Shape]:
    """ResNet-50 for 1,000 classes: 25,583,592 gradients, biases of convolutions included."""
    shapes = _convolution(7, 3, 64)
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shortcut = _convolution(1, channels, 4 * width) if block == 0 else []
            shapes += shortcut + _convolution(1, channels, width)
            shapes += _convolution(3, width, width) + _convolution(1, width, 4 * width)
            channels = 4 * width
    return [*shapes, (channels, 1000), (1000,)]


def bert_base() -> list[Shape]:
    """BERT-base, uncased, with its pooler: 109,482,240 gradients, embeddings dense."""
    width, inner, layers = 768, 3072, 12
    shapes: list[Shape] = [(30522, width), (512, width), (2, width), *[(width,)] * 2]
    for _ in range(layers):
        attention = [(width, width), (width,)] * 4
        shapes += [*attention, (width,), (width,)]
        shapes += [(width, inner), (inner,), (inner, width), (width,), (width,), (width,)]
    return [*shapes, (width, width), (width,)]


MODELS = {f.__name__.replace("_", "-"): f for f in (resnet50, bert_base)}


def numel(shapes: Sequence[Shape]) -> int:
    """Elements of all of them."""
    return sum(math.prod(shape) for shape in shapes)


def checked_model(model: str) -> str:
    """`model`, if it is a known name or a `.keras` file that is there; imports no TensorFlow.

    Raises:
      ModelError: it is neither.
    """
    if model in MODELS:
        return model
    path = Path(model)
    if not model.endswith(".keras"):
        known = " or ".join(MODELS)
        what = "is no .keras file" if path.exists() else "is no known model"
        raise ModelError(
            f"{model!r} {what}: give {known}, or a file that model.save('name.keras') wrote"
        )
    if not path.is_file():
        raise ModelError(
            f"there is no file {model!r}: give the path of one that model.save('name.keras') "
            f"wrote, or {' or '.join(MODELS)}"
        )
    if not zipfile.is_zipfile(path):
        raise ModelError(
            f"{model!r} is no Keras file: write it anew with model.save('name.keras') of Keras 3"
        )
    return model


def weights(model: str) -> list[Weight]:
    """The trainable variables of a known model, or of a `.keras` file, which Keras loads.

    Raises:
      ModelError: the model is not known, or its file does not load.
      MissingDependencyError: a file is given, and TensorFlow is not installed.
    """
    if checked_model(model) in MODELS:
        return [Weight(f"variable_{i}", shape) for i, shape in enumerate(MODELS[model]())]
    tf = import_tensorflow()
    with contextlib.suppress(RuntimeError):  # where TensorFlow is at work, it has them already
        tf.config.set_visible_devices([], "GPU")  # shapes need no GPU's memory
    import keras

    try:
        variables = keras.models.load_model(model, compile=False).trainable_variables
    except Exception as error:  # whatever the file's layers raise
        raise ModelError(
            f"Keras {keras.__version__} cannot load {model!r} ({error}): save the model with this "
            "version, of layers that Keras knows or that are registered in its package"
        ) from error
    return [Weight(v.path, tuple(v.shape), v.dtype) for v in variables]


def _convolution(kernel: int, inputs: int, outputs: int) -> list[Shape]:
    """With its bias, and the batch normalisation's gamma and beta."""
    return [(kernel, kernel, inputs, outputs), *[(outputs,)] * 3]
