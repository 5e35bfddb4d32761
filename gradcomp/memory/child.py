"""The process in which `find_batch_size` tries sizes.

It reads a size a line and answers "fits" or "full", after which it ends.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gradcomp.memory import gpus
from gradcomp.memory.trial import Trial
from gradcomp.memory.usage import MIB, process_memory

# What the CUDA driver, cuBLAS and cuDNN call it; TensorFlow makes an InternalError of these.
_EXHAUSTED = ("out of memory", "out_of_memory", "alloc_failed")


def main(folder: str) -> None:
    """Tries sizes with the model and the trial that are in `folder`."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the model prints is no answer
    # If memory runs out, the kernel ends this process rather than the caller.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    try:
        trial = Trial.load(Path(folder))
        use_gpu(trial)
        for module in trial.modules:
            importlib.import_module(module)
        # The model is the caller's own, who trusts its lambdas.
        model = keras.saving.load_model(Path(folder) / "model.keras", safe_mode=False)
        for line in sys.stdin:
            step(model, trial, int(line))
            if trial.gpu is None and over(trial.limit_mib):
                break
            print("fits", file=answers, flush=True)
        else:
            return
    except Exception as error:
        if not exhausted(error):
            raise
    print("full", file=answers, flush=True)


def use_gpu(trial: Trial) -> None:
    """Configures the GPU as the caller's, and hides the others."""
    if trial.gpu is None:
        return
    gpu = tf.config.list_physical_devices("GPU")[trial.gpu]
    tf.config.set_visible_devices([gpu], "GPU")
    if trial.limit_mib is not None:
        gpus.limit(trial.gpu, trial.limit_mib)
    elif trial.growth:
        tf.config.experimental.set_memory_growth(gpu, True)


def step(model: Any, trial: Trial, size: int) -> None:
    """Trains on one batch of `size` rows, or predicts it."""

    def fill(examples: Any) -> Any:
        return np.take(examples, np.arange(size) % len(examples), axis=0)

    x = keras.tree.map_structure(fill, trial.x)
    if not trial.train:
        model.predict_on_batch(x)
        return
    y = None if trial.y is None else keras.tree.map_structure(fill, trial.y)
    model.train_on_batch(x, y)


def over(limit_mib: int | None) -> bool:
    """Whether this process was ever larger than `limit_mib`."""
    return limit_mib is not None and process_memory().peak > limit_mib * MIB


def exhausted(error: Exception) -> bool:
    """Whether memory ran out, as TensorFlow, NumPy and CUDA's libraries say it."""
    if isinstance(error, tf.errors.OpError) and any(m in str(error).lower() for m in _EXHAUSTED):
        return True
    return isinstance(error, (tf.errors.ResourceExhaustedError, MemoryError))
