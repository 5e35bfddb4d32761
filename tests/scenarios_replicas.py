"""Both ways in, on two logical devices: books that balance, and what can't work."""

from __future__ import annotations

import functools
import socket
import warnings
from typing import Any

import books
import keras
import numpy as np
import scenarios_told
import tensorflow as tf
from reports import told_of
from scenarios_hook import TOPK, with_hook
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
from gradcomp import reducer
from gradcomp.distribute import replicas

SGD = optimizers.SGD


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
    **scenarios_told.SCENARIOS,
    **{
        f"{check.__name__}_{way.__name__}": functools.partial(way, check)
        for check in books.ALL
        for way in (with_our_optimizer, with_the_hook)
    },
    **{
        scenario.__name__: scenario
        for scenario in (
            fits_with_the_hook_follow_each_other,
            one_replica_trains_as_it_would_without,
            xla_is_left_out_or_refused,
            mixed_devices_are_told_of_once,
            strategies_that_cannot_exchange_are_refused,
        )
    },
}
