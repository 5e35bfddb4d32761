"""How much of a GPU's memory TensorFlow takes: a limit, or growth with what is used."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def limit(gpu: int, mib: int) -> None:
    """Lets TensorFlow take at most `mib` MiB of one GPU's memory.

    `tf.config.set_logical_device_configuration` with one
    `tf.config.LogicalDeviceConfiguration(memory_limit=mib)`.

    Call it before TensorFlow initialises the GPUs: before the first tensor, variable, model or
    `report()`. What CUDA itself takes (a few hundred MiB) comes on top.

    Args:
      gpu: index in `tf.config.list_physical_devices("GPU")`.
      mib: mebibytes, at least 1.
    Raises:
      ValueError: there is no such GPU; `mib` is under 1; `growth(True)` was called, which
        TensorFlow would silently drop for all GPUs as soon as one has a limit.
      RuntimeError: the GPUs are initialised already.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not 0 <= gpu < len(gpus):
        raise ValueError(f"there is no GPU {gpu}: {_how_many(gpus)}")
    if mib < 1:
        raise ValueError(f"a GPU's memory limit is at least 1 MiB, got {mib}")
    if grows(gpus[gpu]):
        raise ValueError(
            f"GPU {gpu} has growth, and TensorFlow takes either growth or limits: call "
            "`gc.memory.growth(False)` first"
        )
    configuration = [tf.config.LogicalDeviceConfiguration(memory_limit=mib)]
    try:
        tf.config.set_logical_device_configuration(gpus[gpu], configuration)
    except RuntimeError as error:
        raise RuntimeError(_too_late(f"limit({gpu}, {mib})")) from error


def growth(enable: bool) -> None:
    """Lets TensorFlow take memory of the GPUs as it needs it, instead of nearly all at once.

    `tf.config.experimental.set_memory_growth`, for all GPUs, because TensorFlow refuses to treat
    them differently. It never gives back what it took. Without a GPU this does nothing.

    Call it before TensorFlow initialises the GPUs: before the first tensor, variable, model or
    `report()`.

    Args:
      enable: False sets TensorFlow's default again.
    Raises:
      ValueError: a GPU has a limit already.
      RuntimeError: the GPUs are initialised already.
    """
    gpus = tf.config.list_physical_devices("GPU")
    limited = [index for index, gpu in enumerate(gpus) if limit_of(gpu) is not None]
    if limited:
        raise ValueError(
            f"GPU {limited[0]} has a limit, and TensorFlow takes either growth or limits: leave "
            "out `gc.memory.limit` or `gc.memory.growth`"
        )
    try:
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, enable)
    except RuntimeError as error:
        raise RuntimeError(_too_late(f"growth({enable})")) from error


def limit_of(gpu: Any) -> int | None:
    """MiB that a physical GPU's first logical device may take; None if no limit was set."""
    configured = tf.config.get_logical_device_configuration(gpu)
    return configured[0].memory_limit if configured else None


def grows(gpu: Any) -> bool:
    """Whether growth was set for a physical GPU."""
    return bool(tf.config.experimental.get_memory_growth(gpu))


def _how_many(gpus: list[Any]) -> str:
    if not gpus:
        return (
            "TensorFlow sees none (`gradcomp doctor` tells what it is built for; "
            "CUDA_VISIBLE_DEVICES may hide them)"
        )
    if len(gpus) == 1:
        return "TensorFlow sees one, GPU 0"
    return f"TensorFlow sees {len(gpus)}, 0 to {len(gpus) - 1}"


def _too_late(call: str) -> str:
    return (
        "TensorFlow has initialised the GPUs already, and their memory can't be configured any "
        f"more: call `gc.memory.{call}` at the start of the program, before the first tensor, "
        "variable, model, strategy or `gc.memory.report()`"
    )
