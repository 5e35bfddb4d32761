"""Says in plain words that a worker is gone where TensorFlow says that a collective failed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from gradcomp.errors import WorkerLostError

# Without the graph's trace before it, and TensorFlow's advice or the operation's name after it.
_REASON = re.compile(
    r"Collective (ops is aborted by: )?(.*?)\s*(The error could be from|\t \[\[|\[Op:|$)", re.DOTALL
)


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Around what uses collective operations.

    Raises:
      WorkerLostError: one of them was aborted; TensorFlow's error is its cause.
    """
    try:
        yield
    except WorkerLostError as error:
        # Raised by what a callback did within `fit`, which drops causes on an error's way out.
        error.__cause__ = error.__cause__ or error.__context__
        raise
    except tf.errors.OpError as error:
        reason = _REASON.search(error.message)
        gone = isinstance(error, tf.errors.UnavailableError | tf.errors.DeadlineExceededError)
        if reason is None or not (gone or reason[1]):
            raise
        what = " ".join(f"{type(error).__name__}: Collective {reason[1] or ''}{reason[2]}".split())
        raise WorkerLostError(
            "a collective operation failed: another worker has died, or no longer takes part.\n"
            f"TensorFlow says {what}\n"
            "No collective operation works in this process any more. End it, start all workers "
            "again, and resume from what was saved last: by keras.callbacks.BackupAndRestore in "
            '`fit`, gradcomp.restore_state, or tf.train.Checkpoint; see "A worker that dies" in '
            "docs/tf-distribute.md"
        ) from error
