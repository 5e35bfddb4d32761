"""`gc.Auto` under a strategy, whose choice changes between epochs; the strategy says which."""

from __future__ import annotations

import os
from typing import Any

import books
import keras
import numpy as np
import tensorflow as tf
from scenarios_mirrored import data, loss, model

import gradcomp as gc
from gradcomp.distribute.mirrored import MirroredCollective
from gradcomp.distribute.workers import WorkersCollective

AUTO = gc.Auto(max_error=1.0)


class Paced:
    """Lets exchanges seem to take what a link of this rate would need, another on each rank."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __enter__(self) -> Paced:
        def exchange_time(collective: Any, payload: int, *, name: str) -> float:
            others = collective.size - 1
            return others * (1e-5 + payload / (self.rate * (1 + collective.rank)))

        self.before = [(c, c.exchange_time) for c in (MirroredCollective, WorkersCollective)]
        for kind, _ in self.before:
            kind.exchange_time = exchange_time
        return self

    def __exit__(self, *_: Any) -> None:
        for kind, method in self.before:
            kind.exchange_time = method


def codecs_of(opt: Any) -> set[str]:
    return {"none" if b.codec is None else b.codec.spec for b in opt.plan.buckets}


def the_choice_follows_the_link_between_epochs(strategy: Any) -> list[list[str]]:
    """`fit` compiles its step anew where it changes; nothing is lost, and replicas stay equal."""
    told = []
    with Paced(1e12) as link:
        with strategy.scope():
            net = model()
            policy = gc.Policy(None, rules=[("kernel", AUTO)])
            opt = gc.DistributedOptimizer(keras.optimizers.SGD(0.05), policy)
            net.compile(opt, loss())
        gc.prepare(net)
        x, y = data()
        for rate in (1e12, 1e4, 1e12):
            link.rate = rate
            net.fit(x, y, batch_size=24, epochs=2, verbose=0, shuffle=False)
            told.append(sorted(codecs_of(opt)))
            waiting = any(
                v.numpy().any() for one in opt._reducer.local for v in one.residuals.values()
            )
            assert waiting == (rate == 1e4)
    assert len({one.plan.chosen for one in opt._reducer.local}) == 1
    for variable in net.trainable_variables:
        copies = [copy.numpy() for copy in variable.value.values]
        assert all(np.array_equal(copies[0], copy) for copy in copies)
    return told


def the_hook_chooses_when_it_is_first_used(_: Any) -> list[list[str]]:
    """`gc.CompressedAllReduce`, which is told of no epochs: its first choice stays."""
    nets, told = [], []
    for ops, rate in (
        (tf.distribute.ReductionToOneDevice(), 1e12),
        (gc.CompressedAllReduce(AUTO), 1e12),
        (gc.CompressedAllReduce(AUTO), 1e4),
    ):
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=ops)
        with Paced(rate):
            with strategy.scope():
                net = model()
                net.compile(keras.optimizers.SGD(0.05), loss())
            net.fit(*data(), batch_size=24, epochs=1, verbose=0, shuffle=False)
        nets.append(net.get_weights())
        if isinstance(ops, gc.CompressedAllReduce):
            (reducers,) = ops._reducers.values()
            told.append(sorted(codecs_of(reducers)))
            kept = [v.numpy() for one in reducers.local for v in one.residuals.values()]
            assert any(k.any() for k in kept) == (rate == 1e4)
            for variable in net.trainable_variables:
                first, *others = (copy.numpy() for copy in variable.value.values)
                assert all(np.array_equal(first, other) for other in others)
    for plain, uncompressed in zip(*nets[:2], strict=True):
        np.testing.assert_array_equal(plain, uncompressed)
    return told


def real_exchanges_are_measured(strategy: Any) -> tuple[float, float]:
    """Whatever is chosen, the ranks chose it alike, and train."""
    with strategy.scope():
        net = model()
        opt = gc.DistributedOptimizer(keras.optimizers.SGD(0.05), "auto")
        net.compile(opt, loss())
        opt.build(net.trainable_variables)
    gc.prepare(net)
    x, y = data()
    net.fit(x, y, batch_size=24, epochs=1, verbose=0)
    link = opt._reducer.local[0].chooser._link
    return link.bandwidth, link.latency


def books_balance(strategy: Any) -> None:
    """Those of tests/books.py, which look at all replicas of the process."""

    def kept(opt: Any) -> list[dict[int, tf.Variable]]:
        return [one.residuals for one in opt._reducer.local]

    with Paced(1e4):
        for check in (books.steps_are_traced_again_and_again, books.gradients_are_missing_at_times):
            check(
                strategy,
                lambda: gc.DistributedOptimizer(
                    keras.optimizers.SGD(1.0), gc.Auto(candidates=["topk:density=0.1"])
                ),
                kept,
            )


# `MultiWorkerMirroredStrategy` takes no cross_device_ops.
ON_DEVICES = (books_balance, the_hook_chooses_when_it_is_first_used)
SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        the_choice_follows_the_link_between_epochs,
        real_exchanges_are_measured,
        *(ON_DEVICES if "TF_CONFIG" not in os.environ else ()),
    )
}
