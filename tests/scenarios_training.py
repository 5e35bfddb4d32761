"""Training over Horovod as users write it: `fit`, custom loops, callbacks, saving."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import horovod.tensorflow as stock
import keras
import numpy as np
import tensorflow as tf

import gradcomp as gc
import gradcomp.horovod as hvd

SPECS = (
    "none",
    "identity",
    "fp16",
    "bf16",
    "quantize:bits=8",
    "quantize:bits=4",
    "topk:density=0.05",
)


def data(rank: int, rows: int = 96) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(100 + rank)
    x = rng.standard_normal((rows, 20)).astype(np.float32)
    return x, (x[:, :3].sum(1) > 0).astype(np.int32)


def model(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.Input((20,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(40, activation="relu"),
            keras.layers.Dense(2),
        ]
    )


def loss() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def weights_agree(net: keras.Model) -> bool:
    mine = b"".join(np.asarray(w).tobytes() for w in net.get_weights())
    return len(set(hvd.allgather_object(mine))) == 1


def fit_with_every_codec() -> dict[str, dict]:
    """Ranks start apart, are broadcast, train, and end with the same bits and a lower loss."""
    told = {}
    for spec in SPECS:
        net = model(seed=hvd.rank())
        opt = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), compression=spec)
        net.compile(opt, loss())
        history = net.fit(
            *data(hvd.rank()),
            batch_size=32,
            epochs=8,
            verbose=0,
            shuffle=False,
            callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
        )
        assert weights_agree(net), spec
        assert opt.variables[0].numpy() == 24
        traffic = opt.traffic()
        assert traffic.steps == 24
        told[spec] = {
            "losses": history.history["loss"],
            "sent": traffic.sent_bytes,
            # Beside gradients, ranks send each other which variables have one: a float32 each.
            "planned": (opt.plan.sent_bytes + 4 * len(opt.plan.variables)) * 24,
            "raw": traffic.raw_bytes,
            "flags": 24 * 4 * len(opt.plan.variables),
            "ratio": traffic.compression_ratio,
        }
    return told


def one_step_is_the_mean_of_gradients() -> None:
    """SGD without compression: the step is that of the averaged gradients, bit for bit at N=2."""
    net = model(seed=1)
    x, y = data(hvd.rank())
    with tf.GradientTape() as tape:
        value = loss()(y, net(x, training=True))
    gradients = tape.gradient(value, [v.value for v in net.trainable_variables])
    mean = [stock.allreduce(g, op=stock.Average) for g in gradients]
    expected = [w - np.float32(0.5) * m for w, m in zip(net.get_weights(), mean, strict=True)]
    opt = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5))
    opt.apply_gradients(zip(gradients, net.trainable_variables, strict=True))
    for ours, theirs in zip(net.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def clipping_acts_on_the_reduced_gradient() -> None:
    opt = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, global_clipnorm=1.0))
    v = keras.Variable(np.zeros(2, np.float32))
    # Each rank's own gradient has norm 8: clipped before the sum it would give another mean.
    opt.apply([tf.constant([8.0, 0.0] if hvd.rank() == 0 else [0.0, 8.0])], [v])
    np.testing.assert_allclose(v.numpy(), [-(0.5**0.5)] * 2, rtol=1e-6)


def accumulation_exchanges_on_updates_only() -> None:
    net = model(seed=5)
    opt = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1, gradient_accumulation_steps=3), compression="quantize:bits=8"
    )
    net.compile(opt, loss())
    net.fit(*data(hvd.rank()), batch_size=16, epochs=1, verbose=0, shuffle=False)
    assert opt.traffic().steps == 2
    assert weights_agree(net)


def custom_loop_with_a_new_tape_each_step() -> None:
    """Keras variables as sources; the residual lives on although the tape does not."""
    from gradcomp.horovod import tape as tape_module

    net = model(seed=2)
    opt = keras.optimizers.SGD(0.1)
    opt.build(net.trainable_variables)
    x, y = data(hvd.rank())
    known = len(tape_module._reducers)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            value = loss()(y, net(x, training=True))
        tape = hvd.DistributedGradientTape(tape, compression=gc.TopK(density=0.05))
        gradients = tape.gradient(value, net.trainable_variables)
        opt.apply(gradients, net.trainable_variables)
        return value

    first = float(step(x, y))
    for _ in range(40):
        last = float(step(x, y))
    step(x[:5], y[:5])  # a retrace
    assert last < 0.7 * first
    assert weights_agree(net)
    (reducer,) = list(tape_module._reducers.values())[known:]
    assert reducer.traffic().steps == 42
    assert any(np.any(r.numpy()) for r in reducer.residuals.values())
    # Structures come back as they were given.
    with hvd.DistributedGradientTape(tf.GradientTape(persistent=True), compression="fp16") as tape:
        value = loss()(y, net(x))
    kernel = net.layers[0].kernel
    got = tape.gradient(value, {"a": kernel, "b": [net.layers[1].bias]})
    assert got["a"].shape == kernel.shape
    assert got["b"][0].shape == (40,)
    try:
        tape.gradient(value, [tf.constant(x)])
    except TypeError as error:
        assert "hvd.allreduce" in str(error)
    else:
        raise AssertionError("a tensor has no residual and must be refused")


def reducers_die_with_their_variables() -> None:
    import gc as garbage

    from gradcomp.horovod import tape as tape_module

    garbage.collect()  # earlier scenarios' models
    known = len(tape_module._reducers)
    v = tf.Variable(np.ones((64, 64), np.float32))
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(v * v)
    hvd.DistributedGradientTape(tape, compression="fp16").gradient(value, [v])
    assert len(tape_module._reducers) == known + 1
    del v, value, tape
    garbage.collect()
    assert len(tape_module._reducers) == known


def gradient_missing_on_one_rank() -> None:
    """A variable that only one rank's loss uses is trained on all; one that none uses is left."""
    a, b, c = (keras.Variable(np.ones((40, 40), np.float32)) for _ in range(3))
    opt = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression="quantize:bits=8")
    gradients = [tf.ones((40, 40)), None if hvd.rank() else tf.ones((40, 40)), None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras tells of the variable without a gradient
        opt.apply(gradients, [a, b, c])
    np.testing.assert_allclose(a.numpy(), 0, atol=0.01)
    np.testing.assert_allclose(b.numpy(), 0.5, atol=0.01)
    np.testing.assert_array_equal(c.numpy(), 1)


def two_optimizers_in_one_program() -> list[str]:
    """Both train in one graph; returns the names of all collectives in it."""
    net, other = model(seed=3), model(seed=4)
    opts = [
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), compression="quantize:bits=8"),
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), compression="quantize:bits=8"),
    ]
    for opt, n in zip(opts, (net, other), strict=True):
        opt.build(n.trainable_variables)
    x, y = data(hvd.rank())

    @tf.function
    def step(x, y):
        with tf.GradientTape(persistent=True) as tape:
            values = [loss()(y, n(x)) for n in (net, other)]
        for value, opt, n in zip(values, opts, (net, other), strict=True):
            opt.apply(
                tape.gradient(value, [v.value for v in n.trainable_variables]),
                n.trainable_variables,
            )

    step(x, y)
    assert weights_agree(net)
    assert weights_agree(other)
    graph = step.get_concrete_function(x, y).graph
    # Horovod is told to leave out the scopes around an operation's name.
    return sorted(
        op.name.split("/")[-1]
        for op in graph.get_operations()
        if op.type.startswith("Horovod") and op.get_attr("ignore_name_scope")
    )


def disagreement_is_raised_in_build() -> str:
    compression = gc.Quantize(bits=4) if hvd.rank() == 1 else gc.TopK(density=0.01)
    opt = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), compression=compression)
    try:
        opt.build(model(seed=0).trainable_variables)
    except gc.MismatchError as error:
        return str(error)
    raise AssertionError("ranks did not notice that they disagree")


def saved_models_come_back_distributed() -> None:
    policy = gc.Policy("quantize:bits=4", rules=[("kernel", gc.TopK(density=0.1))])
    net = model(seed=6)
    net.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), compression=policy), loss())
    net.fit(*data(hvd.rank()), epochs=1, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "m.keras")
        net.save(path)
        loaded = keras.models.load_model(path)
    assert loaded.optimizer.options.policy == policy
    loaded.fit(*data(hvd.rank()), epochs=1, verbose=0)
    assert loaded.optimizer.traffic().steps == 3
    assert loaded.optimizer.iterations.numpy() == 6
    assert weights_agree(loaded)


def a_built_optimizer_keeps_its_state() -> None:
    net = model(seed=7)
    opt = keras.optimizers.Adam(0.01)
    opt.build(net.trainable_variables)
    opt.variables[2].assign(np.full(opt.variables[2].shape, 3.0))
    wrapped = hvd.DistributedOptimizer(opt, compression="fp16")
    assert wrapped.plan.compressed_numel > 0
    np.testing.assert_array_equal(wrapped.variables[2].numpy(), 3.0)


def in_a_graph_one_rank_may_lack_a_gradient() -> None:
    """Ranks that lack none look at no flag of presence, and send theirs all the same."""
    both = [keras.Variable(np.zeros((40, 40), np.float32)) for _ in range(2)]
    opt = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression="topk:density=0.5")
    opt.build(both)

    @tf.function
    def step(x):
        given = zip([x, None if hvd.rank() == 0 else x], both, strict=True)
        opt.apply_gradients(pair for pair in given if pair[0] is not None)

    for _ in range(2):
        step(tf.ones((40, 40)))
    sums = [float(tf.reduce_sum(v)) for v in both]
    share = (hvd.size() - 1) / hvd.size()
    np.testing.assert_allclose(sums, [-2400, -2400 * share])
    assert len(set(hvd.allgather_object(tuple(sums)))) == 1


SCENARIOS = {
    f.__name__: f
    for f in (
        fit_with_every_codec,
        one_step_is_the_mean_of_gradients,
        clipping_acts_on_the_reduced_gradient,
        accumulation_exchanges_on_updates_only,
        in_a_graph_one_rank_may_lack_a_gradient,
        custom_loop_with_a_new_tape_each_step,
        reducers_die_with_their_variables,
        gradient_missing_on_one_rank,
        two_optimizers_in_one_program,
        saved_models_come_back_distributed,
        a_built_optimizer_keeps_its_state,
        disagreement_is_raised_in_build,
    )
}
