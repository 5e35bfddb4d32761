"""A backward pass with a slow layer near its end, for Horovod's timeline to show what overlaps."""

from __future__ import annotations

import time

import keras
import numpy as np
import tensorflow as tf

import gradcomp as gc
import gradcomp.horovod as hvd

SLEEP = 0.6  # seconds that the first layer's gradient comes after all others
LAYERS = 4


@tf.custom_gradient
def slow_in_backward(x):
    def gradient(dy):
        return tf.py_function(lambda d: (time.sleep(SLEEP), d)[1], [dy], tf.float32)

    return tf.identity(x), gradient


def _loss(kernels, x):
    for i, kernel in enumerate(kernels):
        x = tf.tanh(x @ kernel)
        if i == 0:
            x = slow_in_backward(tf.ensure_shape(x, [8, 64]))
    return tf.reduce_sum(x)


def _kernels() -> list[tf.Variable]:
    rng = np.random.default_rng(0)
    return [
        tf.Variable(rng.standard_normal((64, 64)).astype(np.float32) / 8) for _ in range(LAYERS)
    ]


def with_a_tape() -> None:
    kernels = _kernels()

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            value = _loss(kernels, x)
        tape = hvd.DistributedGradientTape(tape, compression="quantize:bits=8", bucket_bytes=1)
        return tape.gradient(value, kernels)

    for _ in range(2):
        step(tf.ones((8, 64)))


def with_an_optimizer() -> None:
    _with("quantize:bits=8", keras.optimizers.SGD(0.1))


def with_a_warmup_and_momentum() -> None:
    """Clips each variable's gradient by itself; all variables' norm would wait for all of them."""
    sgd = keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=1.0)
    _with(gc.Warmup("topk:density=0.02", epochs=2), sgd, error_feedback="momentum")


def _with(compression, optimizer, **options) -> None:
    gc.begin_epoch(0)
    kernels = [keras.Variable(k) for k in _kernels()]
    opt = hvd.DistributedOptimizer(optimizer, compression=compression, bucket_bytes=1, **options)
    opt.build(kernels)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            value = _loss([k.value for k in kernels], x)
        opt.apply(tape.gradient(value, [k.value for k in kernels]), kernels)

    # A warm-up waits until all ranks have begun the step, and the first one takes them long.
    for epoch in (0, 0, 1):
        gc.begin_epoch(epoch)
        hvd.allgather_object(epoch)
        step(tf.ones((8, 64)))


SCENARIOS = {
    "with_a_tape": with_a_tape,
    "with_an_optimizer": with_an_optimizer,
    "with_a_warmup_and_momentum": with_a_warmup_and_momentum,
}
