"""Both ways in, on two logical devices: books that balance, reports, and what can't work."""

from __future__ import annotations

import functools
import os
import socket
import warnings
from typing import Any

import books
import keras
import numpy as np
import tensorflow as tf
from reports import Told, by_name, exchange_of, lines_about_the_engine, told_of
from scenarios_hook import TOPK, loop, with_hook
from scenarios_mirrored import (
    BATCH,
    data,
    distributed,
    fit,
    furthest,
    loss,
    message_of,
    model,
    optimizers,
)

import gradcomp as gc
from gradcomp import policy, reducer
from gradcomp.distribute import applied, replicas

SGD = optimizers.SGD
RANK_1 = ("sent dense", "rank 0 or 1, like a bias")
SMALL = ("sent dense", "fewer elements than min_numel=1024")


def with_our_optimizer(check: Any, strategy: Any) -> None:
    def kept(opt: Any) -> list[dict[int, tf.Variable]]:
        return [one.residuals for one in opt._reducer.local]

    check(strategy, lambda: gc.DistributedOptimizer(SGD(1.0), TOPK), kept)


def with_the_hook(check: Any, _: Any) -> None:
    ops = gc.CompressedAllReduce(TOPK)

    def kept(opt: Any) -> list[dict[int, tf.Variable]]:
        reducers = ops._reducers.get(opt)  # made at the first step
        return [] if reducers is None else [one.residuals for one in reducers.local]

    check(with_hook(ops), lambda: SGD(1.0), kept)


def fits_with_the_hook_follow_each_other(_: Any) -> None:
    """Twice, with other batches, with a layer frozen and not, and another model between."""
    ops = gc.CompressedAllReduce(TOPK)
    strategy = with_hook(ops)
    with strategy.scope():
        net, other = model(), model(seed=2)
        for one in (net, other):
            one.compile(SGD(0.05), loss())
    x, y = data()
    net.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False)

    def residual() -> list[np.ndarray]:
        return [r.residuals[0].numpy() for r in ops._reducers[net.optimizer].local]

    def changes(work: Any) -> bool:
        before = residual()
        work()
        return not all(np.array_equal(a, b) for a, b in zip(before, residual(), strict=True))

    assert not changes(lambda: other.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False))
    assert changes(lambda: net.fit(x, y, batch_size=24, verbose=0, shuffle=False))
    for trainable in (False, True):
        net.layers[0].trainable = trainable
        net.train_function = None
        # The only compressed kernel is this layer's.
        changed = changes(lambda: net.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False))
        assert changed == trainable
    assert len(ops._reducers) == 2


def named_model() -> keras.Model:
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.layers.Input((16,)),
            keras.layers.Dense(64, activation="relu", name="first"),
            keras.layers.Dense(64, activation="relu", name="second"),
            keras.layers.Dense(4, dtype="float32", name="third"),
        ]
    )


def compiled(strategy: Any, make: Any) -> keras.Model:
    with strategy.scope():
        net = named_model()
        opt = make()
        net.compile(opt, loss())
        opt.build(net.trainable_variables)
    return net


def the_report_after_fit(strategy: Any) -> str:
    chosen = gc.Policy(TOPK, rules=[("second", None)])
    net = compiled(strategy, lambda: gc.DistributedOptimizer(SGD(0.1), chosen))
    assert set(told_of(net.optimizer).values()) == {("nothing yet", "")}
    net.fit(*data(), batch_size=BATCH, verbose=0)
    assert told_of(net.optimizer) == {
        "first/kernel": ("compressed", ""),
        "first/bias": RANK_1,
        "second/kernel": ("sent dense", "rule 'second' says none"),
        "second/bias": ("sent dense", "rule 'second' says none"),
        "third/kernel": SMALL,
        "third/bias": RANK_1,
    }
    exchange = exchange_of(net.optimizer._reducer.name)
    assert exchange.engine == "MirroredStrategy with 2 replicas"
    return str(exchange)


def the_report_of_a_step_that_is_skipped(strategy: Any) -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        net = compiled(strategy, lambda: gc.DistributedOptimizer(SGD(0.1), TOPK))
    finally:
        keras.config.set_dtype_policy("float32")
    x, y = data()
    net.fit(x, y, batch_size=BATCH, verbose=0)
    assert told_of(net.optimizer)["first/kernel"] == ("compressed", "")
    net.fit(np.full_like(x, 1e30), y, batch_size=BATCH, verbose=0)
    why = "a gradient was not finite, so nothing was exchanged"
    assert set(told_of(net.optimizer).values()) == {("skipped", why)}


def the_report_where_all_is_disabled(strategy: Any) -> None:
    policy._said_disabled = True  # that it warns has a test
    os.environ["GRADCOMP_DISABLE"] = "1"
    try:
        net = compiled(strategy, lambda: gc.DistributedOptimizer(SGD(0.1), TOPK))
        net.fit(*data(), batch_size=BATCH, verbose=0)
    finally:
        del os.environ["GRADCOMP_DISABLE"]
    assert set(told_of(net.optimizer).values()) == {("sent dense", "GRADCOMP_DISABLE is set")}


def the_report_in_a_loop(strategy: Any) -> None:
    """No gradient, one that is not finite, and slices, compiled and eager."""
    check_the_report_in_a_loop(strategy, tf.function)
    check_the_report_in_a_loop(strategy, lambda step: step)


def check_the_report_in_a_loop(strategy: Any, compiled_step: Any) -> None:
    with strategy.scope():
        variables = [keras.Variable(tf.zeros((40, 30)), name=name) for name in "ab"]
        opt = gc.DistributedOptimizer(SGD(0.1), "fp16")
        opt.build(variables)
    scale = tf.Variable(1.0)

    def one(given: bool) -> None:
        rows = tf.IndexedSlices(tf.ones((2, 30)) * scale, tf.constant([1, 5]), (40, 30))
        opt.apply([rows, tf.ones((40, 30)) if given else None], variables)

    step = compiled_step(lambda given: strategy.run(one, args=(given,)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras tells of the missing gradient
        step(True)
        assert told_of(opt) == {"a": ("rows compressed", ""), "b": ("compressed", "")}
        step(False)
        assert told_of(opt)["b"] == ("no gradient", "none on any of 2 ranks")
        scale.assign(np.inf)
        step(True)
        assert {happened for happened, _ in told_of(opt).values()} == {"not finite"}


def reports_of(ops: Any) -> list[Told]:
    return [by_name(exchange_of(kept.name)) for kept in ops._reducers.values()]


def the_report_of_the_hook(_: Any) -> None:
    ops = gc.CompressedAllReduce(TOPK)
    net = compiled(with_hook(ops), lambda: SGD(0.1))
    net.fit(*data(), batch_size=BATCH, verbose=0)
    (told,) = reports_of(ops)
    assert told["first/kernel"] == told["second/kernel"] == ("compressed", "")
    assert told["first/bias"] == RANK_1
    assert told["third/kernel"] == SMALL


def bypass_of(opt: Any) -> Any:
    (found,) = [e for e in gc.report().exchanges if e.name == opt.name]
    return found


def the_hook_with_one_replica_says_so(_: Any) -> None:
    applied._say_once.cache_clear()
    net = compiled(with_hook(gc.CompressedAllReduce(TOPK), devices=1), lambda: SGD(0.1, name="one"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            net.fit(*data(), batch_size=BATCH, verbose=0)
            net.train_function = None
    assert len([w for w in told if "not compressed" in str(w.message)]) == 1
    exchange = bypass_of(net.optimizer)
    assert exchange.engine == "MirroredStrategy with 1 replica"
    assert set(by_name(exchange).values()) == {("not sent", "the strategy has one replica")}


def the_hook_that_the_strategy_replaces_says_so(_: Any) -> None:
    """As it does in an XLA context where all devices are GPUs, which is pretended here."""
    applied._say_once.cache_clear()
    strategy = with_hook(gc.CompressedAllReduce(TOPK))
    with strategy.scope():
        net, opt = named_model(), SGD(0.1, name="replaced")
        opt.build(net.trainable_variables)
    strategy.extended._use_merge_call = lambda: False
    x, y = (tf.constant(a[:BATCH]) for a in data())
    step = loop(strategy, net, opt)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        step(x, y, False)
        step(x, y, False)
    (said,) = [str(w.message) for w in told if "not compressed" in str(w.message)]
    assert "XLA" in said and "gc.DistributedOptimizer" in said
    exchange = bypass_of(opt)
    why = "the strategy has replaced CompressedAllReduce by a reduction of its own"
    assert set(by_name(exchange).values()) == {("sent dense", why)}
    assert {v.payload_bytes for v in exchange.variables} == {
        v.raw_bytes for v in exchange.variables
    }


def the_engine_is_named_once(strategy: Any) -> list[str]:
    def build() -> None:
        for where in (strategy, with_hook(None, devices=1), tf.distribute.OneDeviceStrategy("CPU")):
            for _ in range(2):
                compiled(where, lambda: gc.DistributedOptimizer(SGD(0.1)))

    return lines_about_the_engine(build)


def one_replica_trains_as_it_would_without(_: Any) -> None:
    reducer._said_alone = False
    opt = lambda: optimizers.Adam(0.01)  # noqa: E731
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for strategy in (with_hook(None, devices=1), tf.distribute.OneDeviceStrategy("CPU:0")):
            net = fit(strategy, distributed(opt, TOPK))
            assert furthest(net, fit(strategy, opt)) == 0
            assert {told[0] for told in told_of(net.optimizer).values()} == {"not sent"}
    assert len([w for w in told if "nothing to compress" in str(w.message)]) == 1


def xla_is_left_out_or_refused(strategy: Any) -> None:
    opt = lambda: SGD(0.1)  # noqa: E731
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        nets = [fit(strategy, distributed(opt, TOPK), jit_compile=jit) for jit in (True, False)]
    assert furthest(*nets) == 0
    assert len([w for w in told if "not compiled by XLA" in str(w.message)]) == 1
    hooked = with_hook(gc.CompressedAllReduce(TOPK))
    assert "XLA" in message_of(RuntimeError, lambda: fit(hooked, opt, jit_compile=True))
    with strategy.scope():
        net = model()
        own = gc.DistributedOptimizer(SGD(0.1), TOPK)
        own.build(net.trainable_variables)

    @tf.function(jit_compile=True)
    def step() -> None:
        gradients = [tf.ones(v.shape) for v in net.trainable_variables]
        strategy.run(lambda: own.apply(gradients, net.trainable_variables))

    assert "without jit_compile=True" in message_of(RuntimeError, step)


def mixed_devices_are_told_of_once(strategy: Any) -> None:
    """Devices of several kinds are pretended: how they are told apart has a test of its own."""
    asked, real = [], replicas.mixed

    def pretended(devices: Any) -> list[str]:
        asked.append(tuple(device[-5:] for device in devices))
        return ["CPU", "GPU"]

    replicas.mixed, replicas._said_mixed = pretended, False
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            net = fit(strategy, distributed(lambda: SGD(0.1), TOPK))
            fit(with_hook(gc.CompressedAllReduce(TOPK)), lambda: SGD(0.1))
    finally:
        replicas.mixed = real
    assert asked == [("CPU:0", "CPU:1")] * 2
    (said,) = [str(w.message) for w in told if "several kinds" in str(w.message)]
    assert "(CPU, GPU)" in said and "devices of one kind" in said
    assert ("compressed", "") in told_of(net.optimizer).values()


class PretendedTPUs(tf.distribute.TPUStrategy):
    """One that needs no TPU."""

    def __init__(self) -> None:
        tf.distribute.Strategy.__init__(self, tf.distribute.OneDeviceStrategy("CPU:0").extended)


def parameter_servers() -> Any:
    """A strategy with two servers in this process."""
    ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"127.0.0.1:{port.getsockname()[1]}" for port in ports]
    for port in ports:
        port.close()
    cluster = tf.train.ClusterSpec({"worker": addresses[:1], "ps": addresses[1:]})
    for job in ("worker", "ps"):
        tf.distribute.Server(cluster, job_name=job, task_index=0, protocol="grpc")
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
    return tf.distribute.ParameterServerStrategy(resolver)


def strategies_that_cannot_exchange_are_refused(_: Any) -> None:
    """The last scenario, since servers of parameters are joined to this process."""
    central = tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"])
    for name, make in (
        ("TPUStrategy", PretendedTPUs),
        ("CentralStorageStrategy", lambda: central),
        ("ParameterServerStrategy", parameter_servers),
    ):
        refused = make()
        with refused.scope():
            opt = gc.DistributedOptimizer(SGD(0.1), TOPK)
            variables = [keras.Variable(tf.zeros((40, 30)))]
            told = message_of(TypeError, lambda o=opt, v=variables: o.build(v))
            assert f"under {name}:" in told and "use MirroredStrategy" in told
            told = message_of(TypeError, lambda: gc.all_reduce(tf.ones((40, 30)), "fp16"))
            assert f"under {name}:" in told


SCENARIOS = {
    **{
        f"{check.__name__}_{way.__name__}": functools.partial(way, check)
        for check in books.ALL
        for way in (with_our_optimizer, with_the_hook)
    },
    **{
        scenario.__name__: scenario
        for scenario in (
            fits_with_the_hook_follow_each_other,
            the_report_after_fit,
            the_report_of_a_step_that_is_skipped,
            the_report_where_all_is_disabled,
            the_report_in_a_loop,
            the_report_of_the_hook,
            the_hook_with_one_replica_says_so,
            the_hook_that_the_strategy_replaces_says_so,
            the_engine_is_named_once,
            one_replica_trains_as_it_would_without,
            xla_is_left_out_or_refused,
            mixed_devices_are_told_of_once,
            strategies_that_cannot_exchange_are_refused,
        )
    },
}
