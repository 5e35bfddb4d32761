"""Weights and optimizer variables of a Keras model, saved by their position."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gradcomp.archive import Archive
from gradcomp.errors import StateError


def of_model(model: Any) -> list[Any]:
    """Weights, seeds and what the optimizer keeps, in a fixed order; builds the optimizer.

    Raises:
      StateError: the model is not built.
    """
    if not model.built:
        raise StateError(
            f"model {model.name!r} has no weights yet: call model.build(input_shape), or the model "
            "on a batch, first"
        )
    found = list(model.variables)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        build_optimizer(model)
        found += optimizer.variables
    return found


def build_optimizer(model: Any) -> None:
    """Builds the optimizer of a model that is built, in the scope of the model's strategy."""
    if not model.optimizer.built:
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)


def describe(variables: Sequence[Any]) -> list[dict[str, Any]]:
    """Path, shape and dtype of each, as plain values for JSON."""
    return [
        {"path": v.path, "shape": [int(d) for d in v.shape], "dtype": str(v.dtype)}
        for v in variables
    ]


def arrays_of(variables: Sequence[Any]) -> Iterator[tuple[str, np.ndarray]]:
    """(name, array) of each, one after the other."""
    for index, v in enumerate(variables):
        yield f"variables/{index}", _numpy(v)


def restore(variables: Sequence[Any], archive: Archive) -> None:
    """Assigns what was saved.

    Raises:
      StateError: their number, a shape or a dtype differs; nothing is assigned then.
    """
    saved, now = archive.metadata["variables"], describe(variables)
    if len(saved) != len(now):
        raise StateError(
            f"{len(saved)} variables of a model and its optimizer were saved, and there are "
            f"{len(now)} now: it is another model or optimizer"
        )
    renamed = []
    for old, new in zip(saved, now, strict=True):
        for what in ("shape", "dtype"):
            if old[what] != new[what]:
                raise StateError(
                    f"{old['path']} was saved with {what} {old[what]}, and {new['path']} in its "
                    f"place has {new[what]}"
                )
        if old["path"] != new["path"]:
            renamed.append(f"{old['path']} is now {new['path']}")
    if renamed:
        warnings.warn(
            f"a model's variables are restored by their position; {len(renamed)} have another path "
            f"than when they were saved: {'; '.join(renamed[:3])}",
            stacklevel=3,
        )
    for index, v in enumerate(variables):
        value = archive[f"variables/{index}"]
        # NumPy writes bfloat16 and its like as bytes without a meaning.
        v.assign(value.view(_numpy(v).dtype) if value.dtype.kind == "V" else value)


def _numpy(variable: Any) -> np.ndarray:
    return np.asarray(variable.value.numpy())
