"""Embeddings over Horovod: their gradients are slices, and stay slices, compressed."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from scenarios_training import loss, weights_agree

import gradcomp as gc
import gradcomp.horovod as hvd

FOLDER = Path(os.environ.get("STATE_FOLDER", tempfile.gettempdir()))
WORDS, WIDTH, LENGTH = 80, 16, 6
SPECS = ("fp16", "quantize:bits=8", "quantize:bits=4", "topk:density=0.05")


def model(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(WORDS, WIDTH),
            keras.layers.Flatten(),
            keras.layers.Dense(24, activation="relu"),
            keras.layers.Dense(2),
        ]
    )


def data(rank: int, rows: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Words of a batch come several times; the last ten never."""
    random = np.random.default_rng(50 + rank)
    x = random.integers(0, WORDS - 10, (rows, LENGTH)) // random.integers(1, 4, (rows, 1))
    return x.astype(np.int32), (x[:, 0] % 2).astype(np.int32)


def recording(base: type) -> tuple[type, set[str]]:
    """An optimizer class that notes what it gets for the table, at first for clipping."""
    seen: set[str] = set()

    class Recording(base):  # type: ignore[misc]
        def _clip_gradients(self, grads: Any) -> Any:
            seen.update(type(g).__name__ for g in grads if g.shape == (WORDS, WIDTH))
            return super()._clip_gradients(grads)

    return Recording, seen


def alone(optimizer: Any, steps: int, batch: int, seed: int = 1) -> list[np.ndarray]:
    """Weights after one process has trained with all ranks' batches, all gradients dense."""
    net = model(seed)
    optimizer.build(net.trainable_variables)
    everyones = [data(rank) for rank in range(hvd.size())]
    for step in range(steps):
        at = slice(step * batch, (step + 1) * batch)
        x, y = (np.concatenate([d[i][at] for d in everyones]) for i in range(2))
        with tf.GradientTape() as tape:
            value = loss()(y, net(x, training=True))
        gradients = tape.gradient(value, [v.value for v in net.trainable_variables])
        optimizer.apply([tf.convert_to_tensor(g) for g in gradients], net.trainable_variables)
    return net.get_weights()


def without_loss_it_is_one_process_with_the_whole_batch() -> None:
    """Adam, decay, clipping; within what another order of additions rounds."""
    makers: list[Callable[[type], Any]] = [
        lambda base: base(0.01, clipnorm=0.05),
        lambda base: base(0.01, global_clipnorm=0.2, weight_decay=0.01),
    ]
    for make, spec in zip(makers, ("none", "identity"), strict=True):
        kind, seen = recording(keras.optimizers.Adam)
        net = model(seed=1)
        net.compile(hvd.DistributedOptimizer(make(kind), compression=spec), loss())
        net.fit(*data(hvd.rank()), batch_size=16, epochs=1, verbose=0, shuffle=False)
        assert seen == {"IndexedSlices"}
        assert weights_agree(net)
        expected = alone(make(keras.optimizers.Adam), steps=4, batch=16)
        for ours, theirs in zip(net.get_weights(), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5)


def fit_with_every_codec() -> dict[str, dict]:
    """Ranks end with the same bits and a lower loss; residual rows of unused words stay zero."""
    told = {}
    for spec in ("none", "quantize:bits=4", "topk:density=0.05"):
        kind, seen = recording(keras.optimizers.Adam)
        net = model(seed=2)
        policy = gc.Policy(spec, rules=[("embedding", spec)], min_numel=1)
        net.compile(hvd.DistributedOptimizer(kind(0.01), compression=policy), loss())
        history = net.fit(*data(hvd.rank()), batch_size=16, epochs=5, verbose=0)
        assert weights_agree(net), spec
        assert seen == {"IndexedSlices"}
        reducer = net.optimizer._reducer
        if spec != "none":
            residual = reducer.residuals[0].numpy()
            assert residual[: WORDS - 10].any()
            assert not residual[WORDS - 10 :].any()
        traffic = net.optimizer.traffic()
        told[spec] = {"losses": history.history["loss"], "sent": traffic.sent_bytes}
    return told


def over_steps_nothing_is_lost_in_a_tape() -> None:
    """A loss that is linear in the table: its gradients don't depend on what was applied."""
    for spec, average in zip(SPECS, (True, False, True, False), strict=True):
        table = tf.Variable(np.zeros((WORDS, WIDTH), np.float32))
        kernel = tf.Variable(np.zeros((WIDTH, 30), np.float32))
        policy = gc.Policy(spec, min_numel=1)
        given = np.zeros((WORDS, WIDTH))

        @tf.function(reduce_retracing=True)
        def step(words, weights, table=table, kernel=kernel, policy=policy, average=average):
            with tf.GradientTape() as tape:
                value = tf.reduce_sum(tf.gather(table, words) * weights) + tf.reduce_sum(kernel)
            op = hvd.Average if average else hvd.Sum
            tape = hvd.DistributedGradientTape(tape, compression=policy, op=op)
            gradient, dense = tape.gradient(value, [table, kernel])
            table.scatter_sub(gradient)
            kernel.assign_sub(dense)
            return gradient.indices

        for i in range(8):
            random = np.random.default_rng([hvd.rank(), i])
            words = random.integers(0, WORDS, random.integers(0, 40))
            weights = random.standard_normal((words.size, WIDTH)).astype(np.float32)
            np.add.at(given, words, weights.astype(np.float64))
            indices = step(tf.constant(words), tf.constant(weights)).numpy()
            everyones = np.concatenate(hvd.allgather_object(words))
            np.testing.assert_array_equal(indices, np.unique(everyones))
        residual = reducer_of(table).residuals[0].numpy().astype(np.float64)
        assert residual.any()
        total = sum(g + -r for g, r in hvd.allgather_object((given, residual)))
        share = 1 / hvd.size() if average else 1
        np.testing.assert_allclose(-table.numpy(), share * total, rtol=0, atol=1e-4)
        assert len(set(hvd.allgather_object(table.numpy().tobytes()))) == 1


def reducer_of(source: Any) -> Any:
    from gradcomp.horovod import tape as tape_module

    (reducer,) = (r for (ids, _), r in tape_module._reducers.items() if id(source) in ids)
    return reducer


def a_table_that_is_also_a_matrix_is_dense() -> None:
    """Tied weights: slices and a tensor on both ranks, or on one of them only."""
    for both in (True, False):
        table = tf.Variable(np.zeros((WORDS, WIDTH), np.float32))
        tied = both or hvd.rank() == 1

        @tf.function
        def step(words, table=table, tied=tied):
            with tf.GradientTape() as tape:
                value = 2 * tf.reduce_sum(tf.gather(table, words))
                if tied:
                    value += tf.reduce_sum(table)
            tape = hvd.DistributedGradientTape(tape, compression="quantize:bits=8", op=hvd.Sum)
            return tape.gradient(value, [table])[0]

        words = [1, 1, 7] if hvd.rank() == 0 else [7]
        expected = np.zeros((WORDS, WIDTH)) + (2 if both else 1)
        expected[1] += 4
        expected[7] += 4
        reduced = step(tf.constant(words))
        assert not isinstance(reduced, tf.IndexedSlices)
        np.testing.assert_allclose(reduced, expected, atol=0.05)


def tied_weights_train_in_fit() -> None:
    inputs = keras.layers.Input((LENGTH,), dtype="int32")
    keras.utils.set_random_seed(3)
    embedding = keras.layers.Embedding(WORDS, WIDTH)
    hidden = keras.layers.GlobalAveragePooling1D()(embedding(inputs))
    outputs = keras.layers.Lambda(
        lambda h: keras.ops.matmul(h, keras.ops.transpose(embedding.embeddings)),
        output_shape=(WORDS,),
    )(hidden)
    net = keras.Model(inputs, outputs)
    opt = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), compression="quantize:bits=8")
    net.compile(opt, loss())
    x, _ = data(hvd.rank())
    history = net.fit(x, x[:, 0], batch_size=16, epochs=5, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]
    assert weights_agree(net)


def slices_at_first_and_a_tensor_later() -> None:
    """One graph is traced with slices, the next with a tensor, then one rank has nothing."""
    table = tf.Variable(np.zeros((WORDS, WIDTH), np.float32))
    other = tf.Variable(np.zeros((30, 40), np.float32))

    def gradient(use: str) -> tf.IndexedSlices:
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(other)
            if use == "rows":
                value += tf.reduce_sum(tf.gather(table, [hvd.rank(), 5, 5]))
            elif use == "all":
                value += tf.reduce_sum(table)
        tape = hvd.DistributedGradientTape(tape, compression="fp16", op=hvd.Sum)
        return tape.gradient(value, [table, other])[0]

    rows = np.zeros((WORDS, WIDTH))
    rows[0] += 1
    rows[1] += 1
    rows[5] += 4
    one = np.zeros((WORDS, WIDTH))
    one[1] += 1
    one[5] += 2
    for _ in range(3):
        for use, expected in (
            ("rows", rows),
            ("all", np.full((WORDS, WIDTH), 2)),
            ("nothing" if hvd.rank() == 0 else "rows", one),
        ):
            reduced = tf.function(gradient)(use)
            assert isinstance(reduced, tf.IndexedSlices)
            np.testing.assert_array_equal(tf.convert_to_tensor(reduced), expected)


def mixed_precision_leaves_a_table_alone_where_a_rank_overflows() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        net = model(seed=4)
    finally:
        keras.config.set_dtype_policy("float32")
    policy = gc.Policy("quantize:bits=4", min_numel=1)
    opt = gc.LossScaleOptimizer(
        hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), compression=policy),
        dynamic_growth_steps=2,
    )
    opt.build(net.trainable_variables)
    x, y = data(hvd.rank())

    @tf.function
    def step(factor):
        with tf.GradientTape() as tape:
            value = opt.scale_loss(loss()(y, tf.cast(net(x, training=True), tf.float32)) * factor)
        gradients = tape.gradient(value, [v.value for v in net.trainable_variables])
        assert isinstance(gradients[0], tf.IndexedSlices)
        opt.apply(gradients, net.trainable_variables)

    reducer = opt.inner_optimizer._reducer
    step(tf.constant(1.0))
    for i in range(6):
        before = [reducer.residuals[0].numpy(), *net.get_weights()]
        step(tf.constant(np.inf if hvd.rank() == 1 and i % 2 else 1.0))
        after = [reducer.residuals[0].numpy(), *net.get_weights()]
        assert np.array_equal(before[0], after[0]) == bool(i % 2)
        assert np.array_equal(before[1], after[1]) == bool(i % 2)
        assert 0 < np.abs(after[0]).max() < 1, "residuals are of unscaled gradients"
    assert weights_agree(net)


def half_precision_slices_with_a_loss_scale_in_a_tape() -> None:
    """Values of float16 come back as such; a row is summed over its duplicates in float32."""
    table = tf.Variable(np.zeros((WORDS, WIDTH)), dtype=tf.float16)
    scale = tf.Variable(1024.0)

    @tf.function
    def step(words, factor):
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(tf.gather(table, words)) * tf.cast(scale * factor, tf.float16)
        tape = hvd.DistributedGradientTape(tape, compression="quantize:bits=8", loss_scale=scale)
        return tape.gradient(value, [table])[0]

    words = tf.constant([4] * 100 + [2] * 90)
    reduced = step(words, tf.constant(0.25))
    assert reduced.values.dtype == tf.float16
    assert reduced.indices.numpy().tolist() == [2, 4]
    np.testing.assert_allclose(reduced.values[0], 23040, rtol=0.01)
    np.testing.assert_allclose(reduced.values[1], 25600, rtol=0.01)
    residual = reducer_of(table).residuals[0]
    before = residual.numpy()
    bad = step(words, tf.constant(np.inf if hvd.rank() == 1 else 0.25))
    assert not np.isfinite(bad.values.numpy()).all()
    np.testing.assert_array_equal(residual.numpy(), before)


def a_saved_table_s_residual_continues_bit_for_bit() -> None:
    policy = gc.Policy("topk:density=0.05", min_numel=1)
    net = model(seed=5)
    net.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), compression=policy), loss())
    x, y = data(hvd.rank())

    def train() -> list[bytes]:
        net.fit(x, y, batch_size=16, epochs=1, verbose=0, shuffle=False)
        kept = net.optimizer._reducer.residuals.values()
        return [np.asarray(w).tobytes() for w in (*net.get_weights(), *(r.numpy() for r in kept))]

    train()
    path = hvd.broadcast_object(str(FOLDER / "sparse_state"))
    gc.save_state(path, model=net)
    assert net.optimizer._reducer.residuals[0].numpy().any()
    once = train()
    gc.restore_state(path, model=net)
    assert train() == once


def allreduce_takes_slices() -> None:
    def slices(shift: int = 0) -> tf.IndexedSlices:
        rows = [3, 1 + hvd.rank(), 3]
        values = tf.constant(np.arange(3 * WIDTH).reshape(3, WIDTH) + shift, tf.float32)
        return tf.IndexedSlices(values, tf.constant(rows), tf.constant([WORDS, WIDTH]))

    expected = np.zeros((WORDS, WIDTH))
    for rank in range(hvd.size()):
        np.add.at(expected, [3, 1 + rank, 3], np.arange(3 * WIDTH).reshape(3, WIDTH) / hvd.size())
    plain = hvd.allreduce(slices())
    np.testing.assert_allclose(tf.convert_to_tensor(plain), expected, rtol=1e-6)
    for compression in ("quantize:bits=8", "identity", gc.Policy("fp16", min_numel=1)):
        ours = hvd.allreduce(slices(), compression=compression)
        assert isinstance(ours, tf.IndexedSlices)
        assert ours.indices.numpy().tolist() == [1, 2, 3]
        np.testing.assert_allclose(tf.convert_to_tensor(ours), expected, atol=0.5)
        # A tensor of the same shape is another reduction.
        dense = hvd.allreduce(tf.convert_to_tensor(slices()), compression=compression)
        assert not isinstance(dense, tf.IndexedSlices)
        np.testing.assert_allclose(dense, expected, atol=0.5)
    state, total = hvd.FeedbackState(), np.zeros((WORDS, WIDTH))
    for _ in range(30):
        codec = gc.TopK(density=0.2, values=gc.Identity())
        total += tf.convert_to_tensor(hvd.allreduce(slices(), compression=codec, state=state))
    np.testing.assert_allclose(total / 30, expected, atol=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mixed = hvd.grouped_allreduce([slices(), tf.ones([2000])], compression="quantize:bits=8")
    assert isinstance(mixed[0], tf.IndexedSlices)
    np.testing.assert_allclose(mixed[1], 1)

    @tf.function
    def in_a_graph(values):
        one = tf.IndexedSlices(values, tf.constant([3, 1, 3]), tf.constant([WORDS, WIDTH]))
        return hvd.allreduce(one, compression="fp16", op=hvd.Sum)

    reduced = in_a_graph(tf.ones((3, WIDTH)))
    assert reduced.indices.numpy().tolist() == [1, 3]
    np.testing.assert_array_equal(reduced.values[:, 0], [2, 4])


def what_slices_cannot_do_is_told() -> list[str]:
    slices = tf.IndexedSlices(tf.ones((2, WIDTH)), tf.constant([0, 1]))
    whole = tf.IndexedSlices(tf.ones((2, WIDTH)), tf.constant([0, 1]), tf.constant([WORDS, WIDTH]))
    state = hvd.FeedbackState()
    hvd.allreduce(whole, compression="fp16", state=state)
    told = []
    for attempt in (
        lambda: hvd.allreduce(slices, compression="fp16"),
        lambda: hvd.allreduce(tf.ones((WORDS, WIDTH)), compression="fp16", state=state),
        lambda: hvd.allreduce(
            whole if hvd.rank() else tf.ones((WORDS, WIDTH)), compression="bf16", name="mine"
        ),
    ):
        try:
            attempt()
        except (ValueError, gc.MismatchError) as error:
            told.append(str(error))
        else:
            told.append("accepted")
    return told


SCENARIOS = {
    f.__name__: f
    for f in (
        without_loss_it_is_one_process_with_the_whole_batch,
        fit_with_every_codec,
        over_steps_nothing_is_lost_in_a_tape,
        a_table_that_is_also_a_matrix_is_dense,
        tied_weights_train_in_fit,
        slices_at_first_and_a_tensor_later,
        mixed_precision_leaves_a_table_alone_where_a_rank_overflows,
        half_precision_slices_with_a_loss_scale_in_a_tape,
        a_saved_table_s_residual_continues_bit_for_bit,
        allreduce_takes_slices,
        what_slices_cannot_do_is_told,
    )
}
