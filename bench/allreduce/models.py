"""Shapes of the gradients that are reduced: those of real models, in the order of the model."""

from __future__ import annotations

import math

Shape = tuple[int, ...]


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


def one_large() -> list[Shape]:
    """One tensor of 100 million elements."""
    return [(10_000, 10_000)]


def small() -> list[Shape]:
    """300 tensors of 4,096 elements."""
    return [(64, 64)] * 300


MODELS = {f.__name__.replace("_", "-"): f for f in (resnet50, bert_base, one_large, small)}


def numel(shapes: list[Shape]) -> int:
    """Elements of all of them."""
    return sum(math.prod(shape) for shape in shapes)


def _convolution(kernel: int, inputs: int, outputs: int) -> list[Shape]:
    """With its bias, and the batch normalisation's gamma and beta."""
    return [(kernel, kernel, inputs, outputs), *[(outputs,)] * 3]
