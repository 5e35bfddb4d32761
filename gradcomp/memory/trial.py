"""What a subprocess of `find_batch_size` is told besides the model."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gradcomp.memory import gpus

_ROWS = 32  # more would take memory of the batch's


@dataclass(frozen=True)
class Trial:
    """The caller's examples, and its settings of devices.

    Attributes:
      train: whether a train step is tried; else a prediction.
      x, y: examples, a structure of arrays [rows, ...]; `y` may be None.
      gpu: the physical GPU to use; None without one.
      growth: whether it grows.
      limit_mib: of the GPU, or of the process's resident memory without one; None for no limit.
      modules: where the registered custom objects are.
    """

    train: bool
    x: Any
    y: Any
    gpu: int | None
    growth: bool
    limit_mib: int | None
    modules: tuple[str, ...]

    def save(self, folder: Path) -> None:
        (folder / "trial.pickle").write_bytes(pickle.dumps(self))

    @staticmethod
    def load(folder: Path) -> Trial:
        trial: Trial = pickle.loads((folder / "trial.pickle").read_bytes())
        return trial


def describe(model: Any, x: Any, y: Any, limit_mib: int | None) -> Trial:
    """The trial of a model in the caller's process, on the first GPU that it sees.

    Raises:
      ValueError: `x` or `y` has no rows.
    """
    gpu = next(iter(tf.config.get_visible_devices("GPU")), None)
    if gpu is not None and limit_mib is None:
        limit_mib = gpus.limit_of(gpu)
    custom = {o.__module__ for o in keras.saving.get_custom_objects().values()}
    return Trial(
        train=model.compiled,
        x=_first_rows("x", x),
        y=None if y is None else _first_rows("y", y),
        gpu=None if gpu is None else tf.config.list_physical_devices("GPU").index(gpu),
        growth=gpu is not None and gpus.grows(gpu),
        limit_mib=limit_mib,
        modules=tuple(sorted(custom - {"__main__"})),
    )


def _first_rows(name: str, structure: Any) -> Any:
    def first_rows(leaf: Any) -> Any:
        shape = getattr(leaf, "shape", None)
        if not shape or shape[0] == 0:
            got = repr(leaf)[:60] if shape is None else f"shape {tuple(shape)}"
            raise ValueError(f"{name} must be arrays or tensors of at least one row, got {got}")
        return np.asarray(leaf[:_ROWS])

    return keras.tree.map_structure(first_rows, structure)
