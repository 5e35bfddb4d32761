"""The compiled module, and its errors."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from gradcomp.errors import CodecError, MissingDependencyError

BUILD = ".ci/cuda_extension.sh"


def load() -> ModuleType:
    """The kernels on raw pointers, `gradcomp._cuda`; needs no GPU.

    Raises:
      MissingDependencyError: it was not built, or does not load; says what to type.
    """
    try:
        return importlib.import_module("gradcomp._cuda")
    except ImportError as error:
        raise MissingDependencyError(
            f"gradcomp's CUDA module does not load ({error}). "
            f"Type, in gradcomp's source folder: {BUILD}"
        ) from error


def devices() -> tuple[int, str]:
    """How many GPUs there are and, where there is none, why.

    Raises:
      MissingDependencyError: as `load`.
    """
    count, why = load().devices()
    return count, why


def call(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function of the module, whose ValueError says what does not fit.

    Raises:
      CodecError: with the same message.
    """
    try:
        return function(*args)
    except ValueError as error:
        raise CodecError(str(error)) from error
