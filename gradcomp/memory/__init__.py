"""Memory of GPUs and of the process: limits, growth, what is in use, and the batch that fits.

    import gradcomp as gc

    gc.memory.growth(True)                       # first thing in a program
    print(gc.memory.report())
    gc.memory.find_batch_size(model, x, y)

A thin layer on TensorFlow's public calls; each docstring names its own.
"""

from gradcomp.memory.batch_size import find_batch_size
from gradcomp.memory.callback import MemoryLogger
from gradcomp.memory.gpus import growth, limit
from gradcomp.memory.usage import DeviceMemory, MemoryReport, report

__all__ = [
    "DeviceMemory",
    "MemoryLogger",
    "MemoryReport",
    "find_batch_size",
    "growth",
    "limit",
    "report",
]
