"""The ops' GPU kernels, `_gpu_ops.so`: whether they are loaded, and what follows for placement.

They are made for one version of TensorFlow, which the build writes down beside them, and are loaded
only where TensorFlow is of that version and sees a GPU. Without them the ops run on the CPU.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

VERSION_FILE = "_gpu_ops.tensorflow"


class Loading(NamedTuple):
    """What became of the library.

    Attributes:
      loaded: whether the ops have GPU kernels.
      why: a sentence that says why not; "" where they have.
      broken: whether there is a library that does not load.
    """

    loaded: bool
    why: str = ""
    broken: bool = False


_loading = Loading(False, "TensorFlow's ops are not loaded")


def loading() -> Loading:
    """What became of the library when the ops were loaded."""
    return _loading


def gpu_is_loaded() -> bool:
    """Whether the ops have GPU kernels."""
    return _loading.loaded


def load(tf: Any) -> None:
    """Loads the library where it can be of use; after `_ops.so`, whose ops it has kernels for."""
    global _loading
    library = find()
    why = _why_not(tf, library)
    if why is None:
        try:
            tf.load_op_library(str(library))
            why = Loading(True)
        except (tf.errors.OpError, OSError, RuntimeError) as error:
            why = Loading(False, f"{library} does not load ({error})", broken=True)
    _loading = why


def find() -> Path | None:
    """Where the library is, also in an editable install."""
    spec = importlib.util.find_spec("gradcomp._gpu_ops")
    return None if spec is None or spec.origin is None else Path(spec.origin)


def _why_not(tf: Any, library: Path | None) -> Loading | None:
    """None where the library is to be loaded."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return Loading(
            False, 'TensorFlow sees no GPU: tf.config.list_physical_devices("GPU") is empty'
        )
    if library is None:
        return Loading(False, "_gpu_ops.so was not built")
    try:
        built_for = library.with_name(VERSION_FILE).read_text().strip()
    except OSError as error:
        return Loading(
            False, f"nothing says which TensorFlow {library} is for ({error})", broken=True
        )
    if built_for != tf.__version__:
        return Loading(
            False,
            f"{library} was built for TensorFlow {built_for}, and {tf.__version__} runs",
            broken=True,
        )
    return None


def on_host() -> AbstractContextManager[Any]:
    """For tables and counters, which the GPU kernels read in host memory; nothing without them."""
    return _device("/CPU:0") if gpu_is_loaded() else nullcontext()


def beside(tensors: Sequence[Any]) -> AbstractContextManager[Any]:
    """For ops on `tensors`: the device that holds most of their bytes.

    Nothing without GPU kernels, where the ops run on the CPU anyway, nor where the devices are
    still to be chosen, as in a function without `tf.device`: TensorFlow prefers a GPU then.
    """
    if not gpu_is_loaded():
        return nullcontext()
    held: Counter[str] = Counter()
    for tensor in tensors:
        held[tensor.device] += (tensor.shape.num_elements() or 1) * tensor.dtype.size
    held.pop("", None)
    return _device(max(held, key=held.__getitem__)) if held else nullcontext()


def _device(name: str) -> AbstractContextManager[Any]:
    import tensorflow as tf

    device: AbstractContextManager[Any] = tf.device(name)
    return device
