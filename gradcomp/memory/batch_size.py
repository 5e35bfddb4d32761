"""Searches the largest batch that fits into memory, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import keras

from gradcomp.errors import BatchSizeError
from gradcomp.memory.trial import Trial, describe

_ERROR_LINES = 15
_CHILD = "import sys; from gradcomp.memory.child import main; main(sys.argv[1])"


def find_batch_size(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    start: int = 1,
    most: int = 65536,
    memory_limit: int | None = None,
) -> int:
    """Searches the largest batch that fits, by doubling, then bisecting.

    Each size is tried in a subprocess, which loads a copy of the model
    (`keras.saving.save_model`, `load_model`) and does one `train_on_batch` if the model is
    compiled, else one `predict_on_batch`. Whatever happens there leaves the caller and its model
    as they are. A size does not fit if a new process gets a `tf.errors.ResourceExhaustedError` or
    a `MemoryError`, ends with `std::bad_alloc`, is killed (SIGKILL, as the kernel's OOM killer
    does), or exceeds `memory_limit`. It takes seconds for each size that does not fit.

    On a GPU the subprocess uses the first one that the caller sees, with the same growth and the
    same limit, and has what other processes leave. The caller's own TensorFlow leaves nothing by
    default: call `growth(True)` at the start of the program. On the CPU give a `memory_limit`, or
    the search goes on to where the kernel kills the subprocess. A real training that holds more
    than a batch besides the model needs that on top.

    Classes and functions of one's own must be registered
    (`@keras.saving.register_keras_serializable`) in a module that can be imported, not in the
    script itself. Leave an optimizer for Horovod out of it: compile with the plain one.

    Args:
      model: a Keras model; the copy runs on one device, without a strategy.
      x: examples, an array or tensor [rows, ...], or a list or dict of them. At most 32 rows are
        used, repeated to fill a batch.
      y: targets of the same form, or None.
      start: the first size that is tried.
      most: the search ends here, and returns it if it fits.
      memory_limit: MiB; None for all there is. On a GPU, its logical device's limit
        (`tf.config.set_logical_device_configuration`), by default what `limit` gave the caller's.
        On the CPU, the resident peak of the whole subprocess, TensorFlow included.
    Returns:
      A batch size of at least 1.
    Raises:
      BatchSizeError: not even 1 fits; or the subprocess fails for another reason, whose last lines
        the message has.
      ValueError: `start`, `most` or `memory_limit` is out of range, or the examples have no rows.
    """
    if not 1 <= start <= most:
        raise ValueError(f"1 <= start <= most must hold, got start={start} and most={most}")
    if memory_limit is not None and memory_limit < 1:
        raise ValueError(f"memory_limit is at least 1 MiB, or None, got {memory_limit}")
    trial = describe(model, x, y, memory_limit)
    with (
        tempfile.TemporaryDirectory(prefix="gradcomp-batch-") as name,
        Trials(Path(name)) as trials,
    ):
        keras.saving.save_model(model, Path(name) / "model.keras")
        trial.save(Path(name))
        size = largest(trials.fits, start, most)
    if size == 0:
        raise BatchSizeError(_nothing_fits(trial))
    return size


def largest(fits: Callable[[int], bool], start: int, most: int) -> int:
    """The largest size up to `most` for which `fits`, and 0 if none; at most 2·log2 calls."""
    low, size = 0, start
    while fits(size):
        if size == most:
            return most
        low, size = size, min(2 * size, most)
    high = size
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


class Trials:
    """The subprocess that tries sizes; a new one for the size after one that did not fit.

    Args:
      folder: has the model and the trial, and gets the subprocess's standard error.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> Trials:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._child is not None:
            self._child.kill()
            self._reap(self._child)

    def fits(self, size: int) -> bool:
        """Whether a batch of `size` fits.

        Raises:
          BatchSizeError: the subprocess ended for another reason than memory.
        """
        used = self._child is not None
        # What earlier sizes left behind in their process must not decide about this one.
        return self._try(size) or (used and self._try(size))

    def _try(self, size: int) -> bool:
        child = self._child or self._start()
        assert child.stdin is not None and child.stdout is not None
        with suppress(BrokenPipeError):
            print(size, file=child.stdin, flush=True)
        answer = child.stdout.readline().strip()
        if answer == "fits":
            return True
        self._reap(child)
        self._child = None
        if answer != "full":
            told = (self._folder / "stderr").read_text(errors="replace")
            if not ran_out(child.returncode, told):
                raise BatchSizeError(_failed(size, child.returncode, told))
        return False

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _CHILD, str(self._folder)]
        path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
        with (self._folder / "stderr").open("wb") as stderr:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        return self._child

    def _reap(self, child: subprocess.Popen[str]) -> None:
        assert child.stdin is not None and child.stdout is not None
        with suppress(BrokenPipeError):
            child.stdin.close()
        child.stdout.close()
        child.wait()


def ran_out(returncode: int, stderr: str) -> bool:
    """Whether a process that gave no answer ended for want of memory."""
    aborted = returncode == -signal.SIGABRT and "std::bad_alloc" in stderr
    return returncode == -signal.SIGKILL or aborted


def _nothing_fits(trial: Trial) -> str:
    limit = "" if trial.limit_mib is None else f" into {trial.limit_mib} MiB"
    if trial.gpu is None:
        return f"not even a batch of 1 fits{limit}, where the process with TensorFlow must fit too"
    return (
        f"not even a batch of 1 fits{limit} on GPU {trial.gpu}; if this process holds its memory, "
        "call `gc.memory.growth(True)` at the start of the program"
    )


def _failed(size: int, returncode: int, stderr: str) -> str:
    tail = "\n".join(f"  {line}" for line in stderr.rstrip().splitlines()[-_ERROR_LINES:])
    how = f"exit code {returncode}"
    if returncode < 0:
        how = f"signal {signal.Signals(-returncode).name}"
    return f"the trial of batch size {size} failed, but not for want of memory ({how}):\n{tail}"
