"""Shapes of the gradients that are reduced: those of real models, in the order of the model."""

from __future__ import annotations

from gradcomp import models
from gradcomp.models import Shape


def one_large() -> list[Shape]:
    """One tensor of 100 million elements."""
    return [(10_000, 10_000)]


def small() -> list[Shape]:
    """300 tensors of 4,096 elements."""
    return [(64, 64)] * 300


MODELS = {**models.MODELS, "one-large": one_large, "small": small}
