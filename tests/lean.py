"""What keeps a test process cheap: it imports less, and looks for less garbage."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from typing import NoReturn


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Around a rank's or worker's imports: they make what stays, and Keras leaves out two packages.

    Keras imports scikit-learn (with SciPy) and Matplotlib where it finds them, for wrappers and
    pictures that no rank makes: a quarter of the time that TensorFlow and Keras take.
    """
    gc.disable()
    for name in ("sklearn", "matplotlib"):
        sys.modules[name] = None  # type: ignore[assignment]
    yield
    collect_rarely()


def collect_rarely() -> None:
    """Spares the collector what was imported; it is looked through again and again otherwise.

    TensorFlow and Keras leave half a million objects, and each trace makes so many that the
    search for cycles took a fifth of the time.
    """
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


def leave() -> NoReturn:
    """Ends a process that has said all without taking TensorFlow apart, which takes a second."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
