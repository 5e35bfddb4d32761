"""`import gradcomp.horovod as hvd` stands in for `import horovod.tensorflow.keras as hvd`.

Horovod 0.28.1 carries the bytes; its own `DistributedOptimizer` reduces nothing on Keras 3, this
one does. Functions that move no gradient are Horovod's own.
"""

from __future__ import annotations

from gradcomp.errors import MissingDependencyError
from gradcomp.kernels import load_ops

# TensorFlow first: without it Horovod's own error would send the user the wrong way.
load_ops()
try:
    import horovod.tensorflow  # noqa: F401
except Exception as error:  # Horovod raises more than ImportError when built for another TF
    raise MissingDependencyError(
        f"Horovod can't be used here ({type(error).__name__}: {error}). Build it for the installed "
        "TensorFlow as docs/install.md says; `gradcomp doctor --require horovod` prints the command"
    ) from error

from horovod.tensorflow import (
    Average,
    ProcessSet,
    Sum,
    add_process_set,
    allgather,
    allgather_object,
    alltoall,
    broadcast,
    broadcast_object,
    cross_rank,
    cross_size,
    global_process_set,
    gloo_built,
    gloo_enabled,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    reducescatter,
    remove_process_set,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)

from gradcomp.horovod import callbacks
from gradcomp.horovod.callbacks import BroadcastGlobalVariablesCallback
from gradcomp.horovod.functions import (
    Compression,
    FeedbackState,
    allreduce,
    broadcast_variables,
    grouped_allreduce,
    init,
)
from gradcomp.horovod.optimizer import DistributedOptimizer
from gradcomp.horovod.tape import DistributedGradientTape

__all__ = [
    "Average",
    "BroadcastGlobalVariablesCallback",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "FeedbackState",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allreduce",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
