"""Training that goes on while workers come and go, with the names and arguments of Horovod.

It stands in for `horovod.tensorflow.elastic` and `horovod.tensorflow.keras.elastic`. What finds
hosts, starts workers and brings them together is Horovod's own.
"""

from gradcomp.horovod.elastic.callbacks import (
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)
from gradcomp.horovod.elastic.run import run
from gradcomp.horovod.elastic.state import KerasState, TensorFlowKerasState, TensorFlowState

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "TensorFlowKerasState",
    "TensorFlowState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]
