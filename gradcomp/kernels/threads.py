"""How many threads the kernels use: a setting of the process, passed on to the native libraries.

Each library has a small pool of its own, which starts with the first large bucket; only a program
that encodes arrays and tensors at once has two pools at work.
"""

import operator
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

VARIABLE = "GRADCOMP_NUM_THREADS"
MAX_THREADS = 1024

_lock = threading.Lock()
_chosen: int | None = None
_setters: dict[str, Callable[[int], Any]] = {}


def set_num_threads(count: int) -> None:
    """Lets at most `count` threads work on kernels at once, those that call them included.

    A bucket of more than 256 KiB is shared among as many threads as are free; smaller ones stay on
    the thread that calls. The bytes do not depend on it. With more callers than `count`, each works
    on its own.

    Raises:
      ValueError: `count` is no integer from 1 to 1024.
    """
    global _chosen
    checked = _checked(count, "the number of threads", "pass set_num_threads one")
    with _lock:
        _chosen = checked
        for setter in _setters.values():
            setter(checked)


def get_num_threads() -> int:
    """How many threads kernels use.

    It is what `set_num_threads` was given, else the environment variable GRADCOMP_NUM_THREADS, else
    what `tf.config.threading.set_intra_op_parallelism_threads` was given where TensorFlow is
    loaded, else the number of cores that this process may run on. A kernel library takes it over
    when the first call loads it.

    Raises:
      ValueError: GRADCOMP_NUM_THREADS is no integer from 1 to 1024.
    """
    return _chosen if _chosen is not None else _default()


def attach(library: str, setter: Callable[[int], Any]) -> None:
    """Passes the number of threads on to a library, the first time and whenever it is set.

    Raises:
      ValueError: as `get_num_threads`.
    """
    if library in _setters:
        return
    count = get_num_threads()  # raises before anything is noted, so that every call tells
    with _lock:
        _setters[library] = setter
        # TensorFlow's setting may be known only since a library was attached.
        for known in _setters.values():
            known(count)


def _default() -> int:
    text = os.environ.get(VARIABLE, "")
    if text:
        value = int(text) if text.strip().isdecimal() else text
        return _checked(value, f"the environment variable {VARIABLE}", "set it to one, or unset it")
    # A module that another thread is importing may not hold these names yet.
    config = getattr(sys.modules.get("tensorflow"), "config", None)
    settings = getattr(config, "threading", None)
    chosen = settings.get_intra_op_parallelism_threads() if settings is not None else 0
    return min(int(chosen) or len(os.sched_getaffinity(0)), MAX_THREADS)


def _checked(value: Any, what: str, remedy: str) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if not 1 <= count <= MAX_THREADS or isinstance(value, bool):
        raise ValueError(f"{what} is {value!r}, no integer from 1 to {MAX_THREADS}: {remedy}")
    return count
