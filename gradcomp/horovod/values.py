"""Horovod's functions of tensors, made to take Keras variables and plain values too.

What they do with a tensor, and all their other arguments, is Horovod's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd

from gradcomp.horovod.functions import as_tensor, unwrap


def _of_one(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def takes_values(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return function(as_tensor(tensor), *args, **kwargs)

    return takes_values


def _of_several(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def takes_values(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        return function([as_tensor(tensor) for tensor in tensors], *args, **kwargs)

    return takes_values


allgather = _of_one(hvd.allgather)
alltoall = _of_one(hvd.alltoall)
broadcast = _of_one(hvd.broadcast)
reducescatter = _of_one(hvd.reducescatter)
grouped_allgather = _of_several(hvd.grouped_allgather)
grouped_reducescatter = _of_several(hvd.grouped_reducescatter)


def broadcast_(variables: Any, *args: Any, **kwargs: Any) -> Any:
    """`horovod.tensorflow.broadcast_`, in place, of Keras variables too."""
    return hvd.broadcast_([unwrap(variable) for variable in variables], *args, **kwargs)
