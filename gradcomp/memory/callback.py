"""The Keras callback that logs memory."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from gradcomp.memory.usage import MIB, gpu_names, report


class MemoryLogger(keras.callbacks.Callback):
    """Adds the current and peak MiB of each device to an epoch's logs.

    They are named `cpu_current_mib`, `cpu_peak_mib`, `gpu_0_current_mib`, `gpu_0_peak_mib` and so
    on, and show in the progress bar and in `History`; put it before `CSVLogger`, `TensorBoard` and
    others that are to see them:

      >>> callbacks = [gc.memory.MemoryLogger(), keras.callbacks.CSVLogger("log.csv")]
      >>> model.fit(x, y, callbacks=callbacks)

    A GPU's peak is that of the epoch, validation included: it starts anew at each epoch by
    `tf.config.experimental.reset_memory_stats`. The CPU's is that of the process since it started.
    The numbers are this process's; under Horovod each rank has its own. See `report`.
    """

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        for name in gpu_names():
            tf.config.experimental.reset_memory_stats(name)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is None:
            return
        for memory in report().devices:
            device = memory.device.lower().replace(":", "_")
            logs[f"{device}_current_mib"] = memory.current / MIB
            logs[f"{device}_peak_mib"] = memory.peak / MIB
