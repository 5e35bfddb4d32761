"""gradcomp: compressed gradient exchange for synchronous data-parallel TensorFlow training.

    import gradcomp as gc
    import gradcomp.horovod as hvd

    hvd.init()
    opt = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3), compression=gc.TopK(density=0.01))

Importing the package imports neither TensorFlow nor Horovod; a tensor or an engine does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gradcomp._version import __version__
from gradcomp.codecs import BF16, FP8, FP16, Auto, Codec, Identity, Quantize, Sign, TopK, codec
from gradcomp.errors import (
    ActivationError,
    BatchSizeError,
    CodecError,
    GradcompError,
    MismatchError,
    MissingDependencyError,
    OutOfSyncError,
    StateError,
    WorkerLostError,
)
from gradcomp.kernels import get_num_threads, set_num_threads
from gradcomp.plan import Plan
from gradcomp.policy import Policy
from gradcomp.reporting import Report, report
from gradcomp.warmup import Warmup

if TYPE_CHECKING:
    from gradcomp import memory
    from gradcomp.activations.auto_pack import auto_pack
    from gradcomp.activations.layer import pack_activations
    from gradcomp.activations.pack_model import pack_model
    from gradcomp.distribute.cross_device import CompressedAllReduce
    from gradcomp.distribute.functions import all_reduce
    from gradcomp.distribute.optimizer import DistributedOptimizer
    from gradcomp.distribute.prepare import prepare
    from gradcomp.epochs import begin_epoch
    from gradcomp.loss_scale import LossScaleOptimizer
    from gradcomp.save_callback import SaveState
    from gradcomp.state import restore_state, save_state
    from gradcomp.sync import CheckSync, check_sync
    from gradcomp.tensors import FeedbackState

__all__ = [
    "BF16",
    "FP8",
    "FP16",
    "ActivationError",
    "Auto",
    "BatchSizeError",
    "CheckSync",
    "Codec",
    "CodecError",
    "CompressedAllReduce",
    "DistributedOptimizer",
    "FeedbackState",
    "GradcompError",
    "Identity",
    "LossScaleOptimizer",
    "MismatchError",
    "MissingDependencyError",
    "OutOfSyncError",
    "Plan",
    "Policy",
    "Quantize",
    "Report",
    "SaveState",
    "Sign",
    "StateError",
    "TopK",
    "Warmup",
    "WorkerLostError",
    "__version__",
    "all_reduce",
    "auto_pack",
    "begin_epoch",
    "check_sync",
    "codec",
    "get_num_threads",
    "memory",
    "pack_activations",
    "pack_model",
    "prepare",
    "report",
    "restore_state",
    "save_state",
    "set_num_threads",
]

# What needs Keras or TensorFlow is imported when it is asked for.
_LAZY = {
    "CheckSync": "gradcomp.sync",
    "CompressedAllReduce": "gradcomp.distribute.cross_device",
    "DistributedOptimizer": "gradcomp.distribute.optimizer",
    "LossScaleOptimizer": "gradcomp.loss_scale",
    "SaveState": "gradcomp.save_callback",
    "begin_epoch": "gradcomp.epochs",
    "FeedbackState": "gradcomp.tensors",
    "all_reduce": "gradcomp.distribute.functions",
    "auto_pack": "gradcomp.activations.auto_pack",
    "pack_model": "gradcomp.activations.pack_model",
    "check_sync": "gradcomp.sync",
    "pack_activations": "gradcomp.activations.layer",
    "prepare": "gradcomp.distribute.prepare",
    "restore_state": "gradcomp.state",
    "save_state": "gradcomp.state",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name == "memory":
        return importlib.import_module("gradcomp.memory")
    raise AttributeError(f"module 'gradcomp' has no attribute {name!r}")
