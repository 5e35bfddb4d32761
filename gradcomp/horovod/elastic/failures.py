"""Tells a lost worker from other errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError


@contextmanager
def lost_workers() -> Iterator[None]:
    """Raises `HorovodInternalError` where a collective failed: it says that a worker was lost.

    TensorFlow's own error is what Horovod's operations raise. One that ranks cause by sending
    different shapes is of another class, and stays what it is.
    """
    try:
        yield
    except (tf.errors.UnknownError, tf.errors.AbortedError) as error:
        if "Horovod" not in error.message:
            raise
        raise HorovodInternalError(error.message) from error
