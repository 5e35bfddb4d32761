"""`gc.report` on Horovod ranks, after what `scenarios_training` does in the same processes."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from reports import by_name, exchange_of, lines_about_the_engine, told_of
from scenarios_training import SCENARIOS as BEFORE
from scenarios_training import data, loss, model

import gradcomp as gc
import gradcomp.horovod as hvd
from gradcomp import live

RANK_1 = ("sent dense", "rank 0 or 1, like a bias")


def a_report_after_fit() -> str:
    net = model(seed=1)
    chosen = gc.Policy("topk:density=0.05", min_numel=2000)
    opt = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), compression=chosen)
    opt.build(net.trainable_variables)
    assert set(told_of(opt).values()) == {("nothing yet", "")}
    net.compile(opt, loss())
    net.fit(*data(hvd.rank()), batch_size=32, verbose=0)
    small = ("sent dense", "fewer elements than min_numel=2000")
    assert list(told_of(opt).values()) == [
        small,
        RANK_1,
        ("compressed", ""),
        RANK_1,
        small,
        RANK_1,
    ]
    exchange = exchange_of(opt._reducer.name)
    assert exchange.engine == f"Horovod with {hvd.size()} ranks"
    opt.everywhere(tf.constant(hvd.rank() == 0))  # what a loss scale asks before each step
    why = "a gradient was not finite, so nothing was exchanged"
    assert set(told_of(opt).values()) == {("skipped", why)}
    return str(exchange)


def a_report_of_a_tape() -> None:
    """A gradient that is missing on one rank, on all, and one that is not finite on one rank."""
    a, b, table = (keras.Variable(tf.zeros((40, 30)), name=name) for name in ("a", "b", "table"))
    scale = tf.Variable(1.0)

    @tf.function
    def step(x: tf.Tensor, with_a: bool, with_b: bool) -> None:
        with tf.GradientTape() as tape:
            value = scale * tf.reduce_sum(tf.gather(table.value, [1, 5]) * x[0])
            if with_a:
                value += tf.reduce_sum(a.value * x)
            if with_b:
                value += tf.reduce_sum(b.value * x)
        tape = hvd.DistributedGradientTape(tape, compression="fp16")
        tape.gradient(value, [a, b, table])

    x, known = tf.random.normal((40, 30)), set(live.reducers())
    step(x, True, True)
    (name,) = set(live.reducers()) - known

    def told() -> dict[str, tuple[str, str]]:
        return by_name(exchange_of(name))

    rows = ("rows compressed", "")
    assert told() == {"a": ("compressed", ""), "b": ("compressed", ""), "table": rows}
    step(x, hvd.rank() == 0, False)
    assert told() == {
        "a": ("compressed", f"a gradient on 1 of {hvd.size()} ranks"),
        "b": ("no gradient", f"none on any of {hvd.size()} ranks"),
        "table": rows,
    }
    scale.assign(np.inf if hvd.rank() else 1.0)
    step(x, True, True)
    assert {happened for happened, _ in told().values()} == {"not finite"}


def the_engine_is_named_once() -> list[str]:
    def work() -> None:
        for _ in range(2):
            opt = gc.DistributedOptimizer(keras.optimizers.SGD(0.1), "fp16")
            opt.build(model(seed=1).trainable_variables)
            assert set(told_of(opt).values()) == {("nothing yet", "")}

    return lines_about_the_engine(work)


OWN = (a_report_after_fit, a_report_of_a_tape, the_engine_is_named_once)
SCENARIOS = {**BEFORE, **{scenario.__name__: scenario for scenario in OWN}}
