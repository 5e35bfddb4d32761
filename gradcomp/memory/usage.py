"""Bytes in use, now and at the peak, on each GPU and in the process."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

MIB = 2**20


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of one device.

    Attributes:
      device: "CPU", which stands for this process, or "GPU:0" and so on.
      current: bytes in use now.
      peak: most bytes that were in use at once.
    """

    device: str
    current: int
    peak: int


@dataclass(frozen=True)
class MemoryReport:
    """Memory of all devices, the CPU first. `print(report)` shows it as a table."""

    devices: tuple[DeviceMemory, ...]

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        table = Table(title="Memory in MiB")
        table.add_column("device")
        table.add_column("current", justify="right")
        table.add_column("peak", justify="right")
        for memory in self.devices:
            current, peak = (f"{size / MIB:,.1f}" for size in (memory.current, memory.peak))
            table.add_row(memory.device, current, peak)
        out = io.StringIO()
        # The text goes to logs and files as often as to a terminal: a fixed width keeps it whole.
        Console(file=out, width=100).print(table)
        return out.getvalue().rstrip()


def report() -> MemoryReport:
    """What is in use now, and was at most.

    GPUs: `tf.config.experimental.get_memory_info` of each of
    `tf.config.list_logical_devices("GPU")`: what tensors take, not what TensorFlow took from the
    GPU to put them in. The peak is since the start, or since
    `tf.config.experimental.reset_memory_stats`, which `MemoryLogger` calls at each epoch.
    CPU, of which TensorFlow keeps no account: this process's resident set, and its peak since the
    process started, as the kernel tells them (`VmRSS` and `VmHWM` in `/proc/self/status`).

    It initialises the GPUs: call `limit` and `growth` before.
    """
    gpus = [
        DeviceMemory(name, info["current"], info["peak"])
        for name in gpu_names()
        for info in [tf.config.experimental.get_memory_info(name)]
    ]
    return MemoryReport((process_memory(), *gpus))


def gpu_names() -> list[str]:
    """Names of the logical GPUs as `get_memory_info` takes them: "GPU:0" and so on."""
    return [f"GPU:{index}" for index in range(len(tf.config.list_logical_devices("GPU")))]


def process_memory() -> DeviceMemory:
    """This process's resident set, and its peak."""
    # Not getrusage's ru_maxrss: a child of a large process starts with its parent's.
    lines = Path("/proc/self/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    current, peak = (1024 * int(values[name].split()[0]) for name in ("VmRSS", "VmHWM"))
    return DeviceMemory("CPU", current, peak)
