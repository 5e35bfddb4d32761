"""What Horovod has and gradcomp can't do: each says what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

# name → why it can't be done, and what to do
REMEDIES = {
    "join": "ranks that have joined take no part in an allgather or alltoall, in which compressed "
    "gradients travel. Give every rank the same number of steps: with `shard.batch(n, "
    "drop_remainder=True).take(steps)`, where steps = min(hvd.allgather_object(my_steps)), or "
    "`fit(dataset.repeat(), steps_per_epoch=steps)`",
    "broadcast_global_variables": "TensorFlow 2 has no global variables. Use "
    "`hvd.broadcast_variables(model.weights + model.optimizer.variables, root_rank=0)` or "
    "`hvd.callbacks.BroadcastGlobalVariablesCallback(0)`",
    "broadcast_object_fn": "it makes placeholders for a session of TensorFlow 1. Use "
    "`hvd.broadcast_object(obj, root_rank=0)`",
    "PartialDistributedGradientTape": "write `hvd.DistributedGradientTape` for the variables that "
    "are reduced, and a plain `tf.GradientTape` for the local ones",
    "SyncBatchNormalization": "Horovod's layer does not fit into Keras 3. Use "
    "`keras.layers.GroupNormalization` or `LayerNormalization`, whose statistics need no other "
    "rank",
    "LocalGradientAggregationHelper": "it belongs to the optimizers of Keras 2. Use "
    "`gradient_accumulation_steps` of the Keras optimizer",
}


def _refuse(name: str) -> Callable[..., NoReturn]:
    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"hvd.{name} is not supported by gradcomp: {REMEDIES[name]}")

    refused.__name__ = refused.__qualname__ = name
    refused.__doc__ = f"Raises NotImplementedError: {REMEDIES[name]}."
    return refused


join = _refuse("join")
broadcast_global_variables = _refuse("broadcast_global_variables")
broadcast_object_fn = _refuse("broadcast_object_fn")
PartialDistributedGradientTape = _refuse("PartialDistributedGradientTape")
SyncBatchNormalization = _refuse("SyncBatchNormalization")
LocalGradientAggregationHelper = _refuse("LocalGradientAggregationHelper")
