"""Keeps exchanges out of XLA: neither an engine's collectives nor gradcomp's kernels run there."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import keras
import tensorflow as tf


def refuse_xla() -> None:
    """Raises while a function is traced that XLA is to compile.

    Raises:
      RuntimeError: says what to write; XLA's own error would come later and name an op only.
    """
    if for_xla():
        raise RuntimeError(
            "gradients can't be exchanged in a function that XLA compiles: its collectives have no "
            "XLA kernels. Write @tf.function without jit_compile=True around the exchange; what "
            "is called in it, such as the forward pass, may still be a "
            "tf.function(jit_compile=True)"
        )


def keep_train_steps_out(needs: type) -> None:
    """Makes Keras compile no train step with XLA whose optimizer is a `needs` that exchanges.

    Keras asks for XLA by itself on a machine with one GPU, and an optimizer does not learn of it
    before its gradients are traced, which is too late to leave. So the method in which Keras makes
    a train step is wrapped, for all models; `evaluate` and `predict` keep what was asked for.
    """
    make = keras.Model.make_train_function
    if getattr(make, "keeps_xla_out", False):
        return

    @functools.wraps(make)
    def make_train_function(self: Any, force: bool = False) -> Any:
        optimizer = getattr(self, "optimizer", None)
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        if not isinstance(inner, needs) or getattr(inner, "alone", False) or not self.jit_compile:
            return make(self, force)
        _say_once()
        self.jit_compile = False
        try:
            return make(self, force)
        finally:
            self.jit_compile = True

    make_train_function.keeps_xla_out = True  # type: ignore[attr-defined]
    keras.Model.make_train_function = make_train_function


def for_xla() -> bool:
    """Whether a function is being traced that XLA is to compile."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()
        while context is not None:
            if context.IsXLAContext():
                return True
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)
    return False


@functools.cache
def _say_once() -> None:
    warnings.warn(
        "the train step is not compiled by XLA although jit_compile asks for it: gradients are "
        "exchanged in it. Pass jit_compile=False to `compile` to say so; `evaluate` and `predict` "
        "are compiled as you asked",
        stacklevel=4,
    )
