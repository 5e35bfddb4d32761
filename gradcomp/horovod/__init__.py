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
    Adasum,
    Average,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    add_process_set,
    ccl_built,
    check_extension,
    check_num_rank_power_of_2,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    gpu_available,
    handle_average_backwards_compatibility,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_rank_op,
    local_size,
    local_size_op,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    process_set_included_op,
    rank,
    rank_op,
    refs_to_vars,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    size_op,
    split_list,
    start_timeline,
    stop_timeline,
    vars_to_refs,
)

from gradcomp.horovod import callbacks, elastic
from gradcomp.horovod.broadcast import allgather_object, broadcast_object, broadcast_variables
from gradcomp.horovod.callbacks import BroadcastGlobalVariablesCallback
from gradcomp.horovod.functions import (
    Compression,
    FeedbackState,
    allreduce,
    grouped_allreduce,
    init,
)
from gradcomp.horovod.loading import load_model
from gradcomp.horovod.optimizer import DistributedOptimizer
from gradcomp.horovod.refused import (
    LocalGradientAggregationHelper,
    PartialDistributedGradientTape,
    SyncBatchNormalization,
    broadcast_global_variables,
    broadcast_object_fn,
    join,
)
from gradcomp.horovod.tape import DistributedGradientTape
from gradcomp.horovod.values import (
    allgather,
    alltoall,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_reducescatter,
    reducescatter,
)

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesCallback",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "FeedbackState",
    "LocalGradientAggregationHelper",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "check_extension",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "load_model",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "refs_to_vars",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "split_list",
    "start_timeline",
    "stop_timeline",
    "vars_to_refs",
]
