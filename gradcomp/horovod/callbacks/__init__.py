"""Keras callbacks for Horovod jobs, with the names and arguments of `horovod.tensorflow.keras`."""

from gradcomp.horovod.callbacks.broadcast import BroadcastGlobalVariablesCallback
from gradcomp.horovod.callbacks.checkpoint import BestModelCheckpoint
from gradcomp.horovod.callbacks.learning_rate import (
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
)
from gradcomp.horovod.callbacks.metrics import MetricAverageCallback

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
