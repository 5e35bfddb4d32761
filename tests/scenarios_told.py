"""What `gc.report` and the line about the engine tell on two logical devices."""

from __future__ import annotations

import os
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from reports import Told, by_name, exchange_of, lines_about_the_engine, told_of
from scenarios_hook import TOPK, loop, with_hook
from scenarios_mirrored import BATCH, data, loss, optimizers

import gradcomp as gc
from gradcomp import policy
from gradcomp.distribute import applied

SGD = optimizers.SGD
RANK_1 = ("sent dense", "rank 0 or 1, like a bias")
SMALL = ("sent dense", "fewer elements than min_numel=1024")


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


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        the_report_after_fit,
        the_report_of_a_step_that_is_skipped,
        the_report_where_all_is_disabled,
        the_report_in_a_loop,
        the_report_of_the_hook,
        the_hook_with_one_replica_says_so,
        the_hook_that_the_strategy_replaces_says_so,
        the_engine_is_named_once,
    )
}
