"""Values of one rank given to all, and of all ranks to all; Keras variables are taken too."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import cloudpickle
import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from gradcomp.errors import MismatchError
from gradcomp.horovod.functions import unwrap


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int = 0,
    process_set: Any = hvd.global_process_set,
    inplace: bool = False,
) -> None:
    """Assigns `root_rank`'s values on all ranks.

    Operations are named by position, not by variable: Keras numbers names in each process anew.

    Args:
      variables: Keras or TensorFlow variables, as many and in the same order on all ranks.
      root_rank: rank whose values all get.
      process_set: the ranks that take part.
      inplace: of Horovod's signature; values are the same either way.

    Raises:
      MismatchError: ranks have other numbers, shapes or dtypes of variables; on all of them.
    """
    flat = [unwrap(variable) for variable in variables]
    described = [(v.name, tuple(v.shape), v.dtype.name) for v in flat]
    _compare(allgather_object(described, process_set=process_set))

    @tf.function(autograph=False)
    def assign() -> None:
        for index, variable in enumerate(flat):
            # Horovod has no bfloat16; bits are bits.
            half = variable.dtype == tf.bfloat16
            value = tf.bitcast(variable, tf.uint16) if half else variable
            value = hvd.broadcast(
                value,
                root_rank,
                name=f"gradcomp.broadcast{index}.{value.dtype.name}",
                ignore_name_scope=True,
                process_set=process_set,
            )
            variable.assign(tf.bitcast(value, tf.bfloat16) if half else value)

    if flat:
        assign()


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: Any = hvd.global_process_set,
) -> Any:
    """Gives `root_rank`'s Python object to all ranks.

    Args:
      obj: anything that cloudpickle takes; looked at on `root_rank` only. Keras and TensorFlow
        variables in it, at any depth, arrive as NumPy arrays.
      root_rank: rank whose object all get.
      session: of Horovod's signature; has no meaning in TensorFlow 2.
      name: of the operations; equal on all ranks.
      process_set: the ranks that take part.

    Returns:
      `obj` itself on `root_rank` if it has no variables in it, and equal objects otherwise.
    """
    pickled, has_variables = _pickle(obj) if hvd.rank() == root_rank else (b"", False)
    received = hvd.broadcast_object(
        pickled, root_rank, name=name or "gradcomp.object", process_set=process_set
    )
    return obj if hvd.rank() == root_rank and not has_variables else cloudpickle.loads(received)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: Any = hvd.global_process_set,
) -> list[Any]:
    """The Python objects of all ranks, in rank order.

    Args:
      obj, session, name, process_set: as in `broadcast_object`.
    """
    gathered = hvd.allgather_object(
        _pickle(obj)[0], name=name or "gradcomp.objects", process_set=process_set
    )
    return [cloudpickle.loads(pickled) for pickled in gathered]


class _Pickler(cloudpickle.Pickler):
    """Writes variables as the arrays that they hold."""

    has_variables = False

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, keras.Variable | tf.Variable):
            self.has_variables = True
            return np.array, (unwrap(obj).numpy(),)
        return super().reducer_override(obj)


def _pickle(obj: Any) -> tuple[bytes, bool]:
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(obj)
    return file.getvalue(), pickler.has_variables


def _compare(everyones: list[list[tuple[str, tuple[int, ...], str]]]) -> None:
    lengths = [len(described) for described in everyones]
    if len(set(lengths)) != 1:
        raise MismatchError(f"ranks broadcast different numbers of variables: {lengths}")
    for index, row in enumerate(zip(*everyones, strict=True)):
        kinds = [(shape, dtype) for _, shape, dtype in row]
        if len(set(kinds)) != 1:
            raise MismatchError(
                f"ranks disagree about variable {index} ({row[0][0]}) that is broadcast: "
                + ", ".join(f"{d} {list(s)} on rank {r}" for r, (s, d) in enumerate(kinds))
            )
