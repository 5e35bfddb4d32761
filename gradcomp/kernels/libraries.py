"""Loads the native libraries, each once, when something first needs it."""

import ctypes
import functools
import importlib
import importlib.util
import re
import threading
from types import ModuleType
from typing import Any, NoReturn

from gradcomp.errors import CodecError, MissingDependencyError
from gradcomp.kernels import gpu, threads

OLDEST_TENSORFLOW = (2, 15)
NEWEST_TENSORFLOW = (2, 21)

_INSTALL_TENSORFLOW = "pip install 'tensorflow>=2.15,<2.22'"
_REINSTALL_GRADCOMP = "in gradcomp's source folder: pip install --force-reinstall --no-deps ."
_OPS = (
    "gradcomp_encode",
    "gradcomp_reduce",
    "gradcomp_decode",
    "gradcomp_apply_mask",
    "gradcomp_draw_mask",
    "gradcomp_pack_bits",
    "gradcomp_unpack_bits",
)

_lock = threading.Lock()
_ops: ModuleType | None = None


def load_native() -> ModuleType:
    """The kernels for NumPy arrays, `gradcomp._native`.

    Raises:
      MissingDependencyError: it is not there, or does not load; says what to type.
    """
    try:
        native = importlib.import_module("gradcomp._native")
    except ImportError as error:
        raise MissingDependencyError(
            f"gradcomp's compiled kernels do not load ({error}). Type, {_REINSTALL_GRADCOMP}"
        ) from error
    threads.attach("native", native.set_num_threads)
    return native


def load_ops() -> Any:
    """The module of TensorFlow ops in `_ops.so`; imports TensorFlow.

    Raises:
      MissingDependencyError: TensorFlow is absent or of an untried version, or the library is
        missing or does not load; says what to type.
    """
    global _ops
    if _ops is None:
        with _lock:
            if _ops is None:
                _ops = _load_ops()
    return _ops


@functools.cache
def import_tensorflow() -> Any:
    """TensorFlow, of a version that the ops run in."""
    try:
        tf = importlib.import_module("tensorflow")
    except ImportError as error:
        raise MissingDependencyError(
            f"TensorFlow does not import ({error}). Type: {_INSTALL_TENSORFLOW}"
        ) from error
    version = re.match(r"(\d+)\.(\d+)", tf.__version__)
    found = tuple(map(int, version.groups())) if version else (0, 0)
    if not OLDEST_TENSORFLOW <= found <= NEWEST_TENSORFLOW:
        raise MissingDependencyError(
            f"gradcomp runs in TensorFlow 2.15 to 2.21, and {tf.__version__} is installed. "
            f"Type: {_INSTALL_TENSORFLOW}"
        )
    return tf


def _load_ops() -> ModuleType:
    tf = import_tensorflow()
    # `.so` is a suffix of extension modules, so that Python's own search finds the library, also in
    # an editable install, where it lies apart from the sources.
    spec = importlib.util.find_spec("gradcomp._ops")
    if spec is None or spec.origin is None:
        raise MissingDependencyError(
            f"gradcomp's TensorFlow ops, _ops.so, are not installed. Type, {_REINSTALL_GRADCOMP}"
        )
    try:
        ops: ModuleType = tf.load_op_library(spec.origin)
    except (tf.errors.OpError, OSError, RuntimeError) as error:
        raise MissingDependencyError(
            f"{spec.origin} does not load into TensorFlow {tf.__version__} ({error}). "
            f"Type, {_REINSTALL_GRADCOMP}"
        ) from error
    missing = [name for name in _OPS if not hasattr(ops, name)]
    if missing:
        raise MissingDependencyError(
            f"{spec.origin} lacks the ops {', '.join(missing)}. Type, {_REINSTALL_GRADCOMP}"
        )
    # The same library as TensorFlow's: it is not loaded twice.
    threads.attach("ops", ctypes.CDLL(spec.origin).gradcomp_set_num_threads)
    for op_type in ("GradcompEncode", "GradcompReduce", "GradcompDecode"):
        tf.RegisterGradient(op_type)(_no_gradient)
    gpu.load(tf)
    return ops


def _no_gradient(op: Any, *_: Any) -> NoReturn:
    raise CodecError(
        f"{op.type} has no gradient: gradcomp compresses gradients after they are computed. "
        "Compress outside of the GradientTape, or wrap what is compressed in tf.stop_gradient."
    )
