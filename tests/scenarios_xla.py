"""Functions that XLA compiles: gradcomp stays out of them, or says what to write."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import tensorflow as tf
from scenarios_callbacks import fails
from scenarios_training import data, loss, model, weights_agree

import gradcomp.horovod as hvd


def compiled_models_train_without_xla() -> list[str]:
    """`compile(jit_compile=True)`: one message, the train step without XLA, the others with it."""
    x, y = data(hvd.rank())
    told = []
    for executions, compression in ((1, "quantize:bits=4"), (2, None)):
        net = model(seed=hvd.rank())
        opt = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), compression=compression)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            net.compile(opt, loss(), jit_compile=True, steps_per_execution=executions)
            callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
            net.fit(x, y, batch_size=24, epochs=2, verbose=0, callbacks=callbacks)
            net.train_on_batch(x[:24], y[:24])
            net.evaluate(x, y, verbose=0)
            net.predict(x, verbose=0)
        told += [str(w.message) for w in caught if "XLA" in str(w.message)]
        assert weights_agree(net)
        assert opt.traffic().steps == 9
        assert net.jit_compile is True
    plain = model(seed=1)
    plain.compile(keras.optimizers.SGD(0.1), loss(), jit_compile=True)
    plain.fit(x, y, batch_size=24, verbose=0)  # without our optimizer XLA is left alone
    assert plain.optimizer.iterations.numpy() == 4
    return told


def loss_scaled_models_train_without_xla() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        net = model(seed=1)
        net.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss(), jit_compile=True)
        net.fit(*data(hvd.rank()), batch_size=24, verbose=0)
        assert weights_agree(net)
    finally:
        keras.config.set_dtype_policy("float32")


def exchanges_in_xla_functions_are_refused() -> list[str]:
    net = model(seed=1)
    x, y = data(hvd.rank())
    opt = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), compression="fp16")
    opt.build(net.trainable_variables)
    variables = [v.value for v in net.trainable_variables]

    @tf.function(jit_compile=True)
    def with_optimizer():
        with tf.GradientTape() as tape:
            value = loss()(y, net(x))
        opt.apply(tape.gradient(value, variables), net.trainable_variables)

    @tf.function(jit_compile=True)
    def with_tape():
        with tf.GradientTape() as tape:
            value = loss()(y, net(x))
        return hvd.DistributedGradientTape(tape, compression="fp16").gradient(value, variables)

    @tf.function(jit_compile=True)
    def in_a_branch(flag):
        reduce = lambda: hvd.allreduce(tf.ones(2000), compression="fp16")  # noqa: E731
        return tf.cond(flag, reduce, lambda: tf.ones(2000))

    return [
        fails(with_optimizer, RuntimeError),
        fails(with_tape, RuntimeError),
        fails(lambda: in_a_branch(tf.constant(True)), RuntimeError),
    ]


def forward_passes_may_be_compiled() -> None:
    """What the refusal says to write works."""
    net = model(seed=1)
    x, y = data(hvd.rank())
    opt = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), compression="fp16")
    opt.build(net.trainable_variables)

    @tf.function(jit_compile=True)
    def gradients():
        with tf.GradientTape() as tape:
            value = loss()(y, net(x))
        return tape.gradient(value, [v.value for v in net.trainable_variables])

    @tf.function
    def step():
        opt.apply(gradients(), net.trainable_variables)

    before = net.get_weights()
    step()
    assert weights_agree(net)
    assert not np.array_equal(before[0], net.get_weights()[0])


SCENARIOS = {
    f.__name__: f
    for f in (
        compiled_models_train_without_xla,
        loss_scaled_models_train_without_xla,
        exchanges_in_xla_functions_are_refused,
        forward_passes_may_be_compiled,
    )
}
