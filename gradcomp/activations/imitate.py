"""Functions in the place of others, with their names and signatures."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any


def imitate(substitute: Any, function: Callable[..., Any]) -> Any:
    """Gives `substitute` the name, the docstring and the signature of `function`; returns it.

    As `functools.update_wrapper`, but without `__wrapped__`: of an argument that has one,
    `tf.function` traces what is in it, here the function that was to be replaced.
    """
    functools.update_wrapper(substitute, function)
    del substitute.__wrapped__
    with contextlib.suppress(ValueError, TypeError):  # of some built-in functions nobody knows it
        substitute.__signature__ = inspect.signature(function)
    return substitute
