"""`gc.DistributedOptimizer` under MirroredStrategy, beside stock Keras and one process."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import gradcomp as gc

optimizers = keras.optimizers
ROWS, BATCH = 72, 16  # the last batch is an odd one
LONG = 136  # nine steps in one epoch: each epoch takes as long to begin as twenty steps
schedules = optimizers.schedules


def data(rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((rows, 16)).astype(np.float32)
    return x, x[:, :4].argmax(1).astype(np.int32)


def loss() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def model(seed: int = 1) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.Input((16,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(4, dtype="float32"),
        ]
    )


def fit(strategy: Any, opt: Any, rows: int = LONG, epochs: int = 1, **options: Any) -> keras.Model:
    """A model trained in the strategy, or in one process where there is none."""
    if strategy is None:
        net = model()
        net.compile(opt(), loss(), **options)
    else:
        with strategy.scope():
            net = model()
            net.compile(opt(), loss(), **options)
    x, y = data(rows)
    net.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0, shuffle=False)
    return net


def furthest(ours: keras.Model, theirs: keras.Model) -> float:
    pairs = zip(ours.get_weights(), theirs.get_weights(), strict=True)
    return float(max(np.abs(a - b).max() for a, b in pairs))


def distributed(opt: Any, *args: Any, **kwargs: Any) -> Callable[[], Any]:
    return lambda: gc.DistributedOptimizer(opt(), *args, **kwargs)


def residuals(opt: Any) -> list[np.ndarray]:
    opt = getattr(opt, "inner_optimizer", opt)
    return [v.numpy() for r in opt._reducer.local for v in r.residuals.values()]


def equal(some: list[np.ndarray], others: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))


def replicas_agree(net: keras.Model) -> bool:
    copies = [v.value.values for v in net.trainable_variables]
    return all(np.array_equal(a.numpy(), b.numpy()) for a, b in copies)


def identity_is_the_plain_strategy_bit_for_bit(strategy: Any) -> None:
    rate = schedules.ExponentialDecay(0.01, decay_steps=2, decay_rate=0.7)
    for opt in (
        lambda: optimizers.SGD(rate, momentum=0.9, nesterov=True),
        lambda: optimizers.AdamW(0.01, weight_decay=0.02, use_ema=True),
    ):
        plain = fit(strategy, opt)
        for compression in (None, gc.Identity()):
            ours = fit(strategy, distributed(opt, compression))
            assert furthest(ours, plain) == 0
            assert ours.optimizer.plan.world_size == 2


def lossy_codecs_train_and_keep_replicas_equal(strategy: Any) -> None:
    adam = lambda: optimizers.Adam(0.01)  # noqa: E731
    rows, epochs = 216, 2
    plain = fit(strategy, adam, rows, epochs)
    x, y = data(rows)
    for compression in ("topk:density=0.05", "quantize:bits=4"):
        ours = fit(strategy, distributed(adam, compression), rows, epochs)
        assert replicas_agree(ours)
        assert furthest(ours, plain) > 0
        assert all(r.any() for r in residuals(ours.optimizer))
        assert ours.evaluate(x, y, verbose=0) < 0.9
        traffic = ours.optimizer.traffic()
        assert traffic.steps == epochs * -(-rows // BATCH)
        assert traffic.compression_ratio > 1.5


def what_stock_gets_wrong_equals_one_process(strategy: Any) -> dict[str, tuple[str, float]]:
    """By case: what stock Keras does, and how far ours is from one process."""
    cases: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
        "clipnorm": (lambda: optimizers.SGD(0.1, clipnorm=0.05), {}),
        "global_clipnorm": (lambda: optimizers.SGD(0.1, global_clipnorm=0.05), {}),
        "clipvalue": (lambda: optimizers.SGD(0.1, clipvalue=0.002), {}),
        "accumulation": (
            lambda: optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2),
            {},
        ),
        "overwrite": (lambda: optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=3), {}),
        "all of it": (
            lambda: optimizers.AdamW(
                0.01,
                gradient_accumulation_steps=3,
                global_clipnorm=0.1,
                use_ema=True,
                ema_overwrite_frequency=2,
            ),
            {"steps_per_execution": 2},
        ),
    }
    told = {}
    for name, (opt, options) in cases.items():
        alone = fit(None, opt)
        try:
            stock = f"{furthest(fit(strategy, opt, **options), alone):.1g} away"
        except (RuntimeError, ValueError) as error:
            stock = "merge_call" if "merge_call" in str(error) else str(error)
        told[name] = stock, furthest(fit(strategy, distributed(opt), **options), alone)
    return told


def nothing_is_sent_while_gradients_accumulate(strategy: Any) -> None:
    opt = lambda: optimizers.SGD(0.1, gradient_accumulation_steps=3)  # noqa: E731
    net = fit(strategy, distributed(opt, "topk:density=0.05"))
    assert net.optimizer.traffic().steps == -(-LONG // BATCH) // 3
    assert replicas_agree(net)


def an_overflow_on_one_replica_skips_the_step_on_all(strategy: Any) -> dict[str, Any]:
    x, y = (np.concatenate([a] * 4) for a in data())
    x[BATCH // 2 : BATCH] = 1e30  # the second replica's half of the first batch

    def train(wrap: Callable[[Any], Any]) -> keras.Model:
        keras.config.set_dtype_policy("mixed_float16")
        try:
            with strategy.scope():
                net = model()
                net.compile(wrap(optimizers.SGD(0.01)), loss())
        finally:
            keras.config.set_dtype_policy("float32")
        net.fit(x, y, batch_size=BATCH, epochs=1, verbose=0, shuffle=False)
        return net

    told = {"stock": all(np.isfinite(w).all() for w in train(lambda opt: opt).get_weights())}
    for compression in ("identity", "topk:density=0.05"):
        net = train(lambda opt, c=compression: gc.DistributedOptimizer(opt, c))
        assert type(net.optimizer) is gc.LossScaleOptimizer
        assert all(np.isfinite(w).all() for w in net.get_weights())
        assert all(np.isfinite(r).all() for r in residuals(net.optimizer))
        assert replicas_agree(net)
        steps = 4 * ROWS // BATCH
        told[compression] = (
            steps - int(net.optimizer.iterations.numpy()),
            steps - net.optimizer.traffic().steps,
            float(net.optimizer.dynamic_scale.numpy()),
        )
    return told


def embedding(seed: int = 1) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.Input((4,), dtype="int32"),
            keras.layers.Embedding(300, 8),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )


def an_embedding_and_an_unused_layer_in_a_loop(strategy: Any) -> None:
    random = np.random.default_rng(0)
    tokens = random.integers(0, 300, (80, 4), dtype=np.int32)
    labels = random.integers(0, 3, 80).astype(np.int32)
    per_example = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def train(where: Any, wrap: Callable[[Any], Any]) -> tuple[keras.Model, Any]:
        with where.scope():
            net = embedding()
            unused = keras.layers.Dense(40)
            unused.build((40,))
            opt = wrap(optimizers.SGD(0.1))  # Keras's Adam squares each of several equal rows
            variables = [*net.trainable_variables, *unused.trainable_variables]
            opt.build(variables)
        before = [v.numpy() for v in unused.trainable_variables]

        def one(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                value = tf.reduce_sum(per_example(y, net(x, training=True))) / 32
            opt.apply(tape.gradient(value, [v.value for v in variables]), variables)
            return value

        @tf.function(reduce_retracing=True)
        def step(x: Any, y: Any) -> tf.Tensor:
            return where.reduce("SUM", where.run(one, args=(x, y)), axis=None)

        batches = tf.data.Dataset.from_tensor_slices((tokens, labels)).batch(32)
        for x, y in where.experimental_distribute_dataset(batches):
            step(x, y)
        for a, b in zip(before, unused.trainable_variables, strict=True):
            assert np.array_equal(a, b.numpy())
        return net, opt

    alone, _ = train(tf.distribute.OneDeviceStrategy("CPU:0"), lambda opt: opt)
    exact, _ = train(strategy, lambda opt: gc.DistributedOptimizer(opt))
    assert furthest(exact, alone) < 1e-6
    lossy, opt = train(strategy, lambda opt: gc.DistributedOptimizer(opt, "topk:density=0.05"))
    assert replicas_agree(lossy)
    assert opt.traffic().steps == 3


def checkpoints_hold_every_replicas_residuals(strategy: Any) -> None:
    net = fit(strategy, distributed(lambda: optimizers.Adam(0.01), "topk:density=0.05"))
    kept = residuals(net.optimizer)
    first, second = kept[: len(kept) // 2], kept[len(kept) // 2 :]
    assert all(r.any() for r in kept)
    assert not all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    x, y = data()
    with tempfile.TemporaryDirectory() as folder:
        path = tf.train.Checkpoint(opt=net.optimizer, net=net).save(f"{folder}/checkpoint")
        net.save(f"{folder}/net.keras")
        net.fit(x, y, batch_size=BATCH, epochs=1, verbose=0, shuffle=False)
        expected = net.get_weights()
        tf.train.Checkpoint(opt=net.optimizer, net=net).restore(path)
        assert all(
            np.array_equal(a, b) for a, b in zip(kept, residuals(net.optimizer), strict=True)
        )
        net.fit(x, y, batch_size=BATCH, epochs=1, verbose=0, shuffle=False)
        assert equal(expected, net.get_weights())
        with strategy.scope(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras gives other paths
            again = keras.models.load_model(f"{folder}/net.keras")
        pairs = zip(kept, residuals(again.optimizer), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs)
        again.fit(x, y, batch_size=BATCH, epochs=1, verbose=0, shuffle=False)
        assert equal(expected, again.get_weights())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            alone = keras.models.load_model(f"{folder}/net.keras")
        carried = list(alone.optimizer._reducer.carried.values())
        sums = [a + b for a, b in zip(first, second, strict=True)]
        assert len(carried) == len(sums)
        for a, b in zip(carried, sums, strict=True):
            np.testing.assert_allclose(a.numpy(), b, atol=1e-7)


def fits_follow_each_other(strategy: Any) -> None:
    """Twice, with other batches, with layers frozen and not; residuals stay where they belong."""
    with strategy.scope():
        net, other = model(), model(seed=2)
        net.compile(gc.DistributedOptimizer(optimizers.SGD(0.05), "topk:density=0.05"), loss())
        other.compile(gc.DistributedOptimizer(optimizers.SGD(0.05), "topk:density=0.05"), loss())
    x, y = data()
    net.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False)
    kept = residuals(net.optimizer)
    other.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False)
    assert equal(kept, residuals(net.optimizer))
    for rows in (8, 24):
        net.fit(x, y, batch_size=rows, verbose=0, shuffle=False)
    steps = sum(-(-ROWS // rows) for rows in (BATCH, 8, 24))
    assert net.optimizer.traffic().steps == steps
    # Keras's optimizers know the variables that they were built with: freezing needs no new one.
    kept = residuals(net.optimizer)
    net.layers[0].trainable = False
    net.train_function = None
    frozen = net.layers[0].get_weights()
    net.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False)
    assert all(
        np.array_equal(a, b) for a, b in zip(frozen, net.layers[0].get_weights(), strict=True)
    )
    for before, after in zip(kept, residuals(net.optimizer), strict=True):
        assert np.array_equal(before, after)  # the only compressed kernel is the frozen layer's
    net.layers[0].trainable = True
    net.train_function = None
    net.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False)
    assert not all(
        np.array_equal(a, b) for a, b in zip(kept, residuals(net.optimizer), strict=True)
    )
    assert replicas_agree(net)


def tensors_are_reduced_in_replicas(strategy: Any) -> None:
    """Exactly without a codec; with one, over the steps nothing is lost."""
    state = gc.FeedbackState()
    x = np.random.default_rng(0).standard_normal((2, 64, 40)).astype(np.float32)

    def reduce(codec: Any, **options: Any) -> Any:
        def one() -> Any:
            rank = tf.distribute.get_replica_context().replica_id_in_sync_group
            mine = tf.gather(tf.constant(x), rank)
            return gc.all_reduce({"a": mine, "b": mine[0]}, codec, **options)

        return strategy.run(one)

    for average, expected in ((True, x.mean(0)), (False, x.sum(0))):
        told = tf.function(lambda a=average: reduce(None, average=a))()
        for one in told["a"].values:
            np.testing.assert_allclose(one, expected, rtol=1e-6)
        np.testing.assert_allclose(told["b"].values[0], expected[0], rtol=1e-6)
    step = tf.function(lambda: reduce("topk:density=0.1", state=state))
    applied = np.zeros(x[0].shape)
    for _ in range(6):
        first, second = step()["a"].values
        assert np.array_equal(first, second)
        applied += first.numpy()
    waiting = sum(r.residuals[0].numpy().astype(np.float64) for r in state.reducer.local) / 2
    assert waiting.any()
    np.testing.assert_allclose(applied + waiting, 6 * x.mean(0), atol=1e-4)
    told = message_of(ValueError, lambda: reduce("fp16", state=state))
    assert "other tensors or another codec" in told


def a_step_is_traced_as_often_as_the_plain_strategys(strategy: Any) -> None:
    def traces(opt: Callable[[], Any]) -> int:
        count = 0

        class Counted(keras.Sequential):
            def train_step(self, data: Any) -> Any:
                nonlocal count
                count += 1
                return super().train_step(data)

        with strategy.scope():
            net = Counted([keras.layers.Input((16,)), keras.layers.Dense(4)])
            net.compile(opt(), loss())
        net.fit(*data(), batch_size=BATCH, verbose=0)
        return count

    assert traces(distributed(optimizers.SGD, "quantize:bits=8")) == traces(optimizers.SGD)


def message_of(error: type[Exception], work: Callable[[], Any]) -> str:
    try:
        work()
    except error as told:
        return str(told)
    raise AssertionError(f"no {error.__name__}")


def what_cannot_work_says_so(strategy: Any) -> None:
    def built_here(compression: Any, **options: Any) -> Any:
        with strategy.scope():
            net = model()
            opt = gc.DistributedOptimizer(optimizers.SGD(0.1, momentum=0.9), compression, **options)
            opt.build(net.trainable_variables)
        return net, opt

    told = message_of(ValueError, lambda: built_here(gc.Warmup("topk:density=0.01")))
    assert "gc.Warmup can't be used under a tf.distribute strategy" in told
    net, opt = built_here("fp16")
    gradients = [tf.zeros(v.shape) for v in net.trainable_variables]
    with strategy.scope():
        told = message_of(RuntimeError, lambda: opt.apply(gradients, net.trainable_variables))
    assert "strategy.run" in told
    told = message_of(RuntimeError, lambda: opt.apply(gradients, net.trainable_variables))
    assert "strategy.scope()" in told


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        identity_is_the_plain_strategy_bit_for_bit,
        lossy_codecs_train_and_keep_replicas_equal,
        what_stock_gets_wrong_equals_one_process,
        nothing_is_sent_while_gradients_accumulate,
        an_overflow_on_one_replica_skips_the_step_on_all,
        an_embedding_and_an_unused_layer_in_a_loop,
        checkpoints_hold_every_replicas_residuals,
        fits_follow_each_other,
        tensors_are_reduced_in_replicas,
        a_step_is_traced_as_often_as_the_plain_strategys,
        what_cannot_work_says_so,
    )
}
