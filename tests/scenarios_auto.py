"""`gc.Auto` as users write it, on real Horovod ranks."""

from __future__ import annotations

import logging
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from auto_checks import (
    a_graph_is_traced_once,
    ranks_decide_alike_though_they_measure_different_things,
    what_was_restored_is_sent,
)
from invariants import contribution
from scenarios_training import data, loss, model

import gradcomp as gc
import gradcomp.horovod as hvd
from gradcomp import chooser as chooser_module
from gradcomp.horovod.collective import HorovodCollective

TWO = gc.Auto(candidates=["quantize:bits=4", "topk:density=0.01"])
FOLDER = Path(os.environ.get("STATE_FOLDER", tempfile.gettempdir()))


class Lines(logging.Handler):
    """What the logger "gradcomp" is told."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> list[str]:
        logging.getLogger("gradcomp").addHandler(self)
        logging.getLogger("gradcomp").setLevel(logging.INFO)
        return self.lines

    def __exit__(self, *_: Any) -> None:
        logging.getLogger("gradcomp").removeHandler(self)


class Paced:
    """Lets exchanges seem to take what a link of this rate would need, another on each rank."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.before = HorovodCollective.exchange_time

    def __enter__(self) -> Paced:
        def exchange_time(collective: Any, payload: int, *, name: str) -> float:
            self.before(collective, payload, name=name)
            others = collective.size - 1
            return others * (1e-5 + payload / (self.rate * (1 + collective.rank)))

        HorovodCollective.exchange_time = exchange_time
        return self

    def __exit__(self, *_: Any) -> None:
        HorovodCollective.exchange_time = self.before


def network(compression: Any = "auto", **options: Any) -> keras.Model:
    net = model(seed=1)
    opt = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), compression=compression, **options)
    net.compile(opt, loss())
    return net


def fit(net: keras.Model, epochs: int = 1) -> None:
    net.fit(*data(hvd.rank()), batch_size=24, epochs=epochs, verbose=0, shuffle=False)


def codecs_of(plan: gc.Plan) -> set[str]:
    return {"none" if b.codec is None else b.codec.spec for b in plan.buckets}


def it_measures_tells_and_reports() -> tuple[str, str, str, str]:
    """A slow link: rank 0 says what was chosen, and plan and report show it on all ranks."""
    with Paced(1e5), Lines() as lines:
        net = network()
        fit(net)
    told = [line for line in lines if line.startswith("auto chose")]
    assert len(told) == (1 if hvd.rank() == 0 else 0), lines
    gc.check_sync(net)
    (exchange,) = [e for e in gc.report().exchanges if e.name == net.optimizer._reducer.name]
    big = exchange.variables[0]
    assert big.codec == "quantize:bits=4"
    assert big.happened == "compressed"
    assert net.optimizer.traffic().compression_ratio > 1.5
    saved = net.optimizer.get_config()["gradcomp"]["policy"]["default"]
    return big.why, str(net.optimizer.plan), saved, "".join(told)


def none_is_told_too() -> tuple[str, str]:
    with Paced(1e12), Lines() as lines:
        net = network()
        fit(net)
    assert codecs_of(net.optimizer.plan) == {"none"}
    (exchange,) = [e for e in gc.report().exchanges if e.name == net.optimizer._reducer.name]
    plain = network(None)
    fit(plain)
    for ours, theirs in zip(net.get_weights(), plain.get_weights(), strict=True):
        # Buckets are others, and with them the order in which a ring of three adds.
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    return exchange.variables[0].why, "".join(lines)


def the_choice_follows_the_link_in_a_compiled_step(**options: Any) -> list[str]:
    """`fit` traces once, and the codec changes while it runs; weights stay equal."""
    chooser_module.FIRST_LOOK = 3
    traces = []
    with Paced(1e12) as link:
        net = network(gc.Policy(TWO), **options)

        def train_step(batch, step=net.train_step):
            traces.append(0)
            return step(batch)

        net.train_step = train_step
        told = []
        for rate in (1e12, 1e5, 1e12):
            link.rate = rate
            fit(net, epochs=4)
            told.append(",".join(sorted(codecs_of(net.optimizer.plan))))
    chooser_module.FIRST_LOOK = 100
    gc.check_sync(net)
    assert len(traces) <= 2, traces  # once more after a step that creates variables
    assert not any(c.any() for c in _contribution(net.optimizer))
    return told


def _contribution(opt: Any) -> list[np.ndarray]:
    shapes = [v.shape for v in opt.plan.variables]
    return contribution(opt._reducer, shapes)


def a_rule_chooses_beside_a_warm_up_with_momentum_correction() -> list[str]:
    """The codecs at last; the first epoch is uncompressed where no rule says otherwise."""
    net = model(seed=1)
    rule = (re.escape(net.layers[1].kernel.path), TWO)
    warmup = gc.Warmup(gc.Policy("topk:density=0.05", rules=[rule]), epochs=1, start="none")
    sgd = keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=1.0)
    opt = hvd.DistributedOptimizer(sgd, compression=warmup, error_feedback="momentum")
    net.compile(opt, loss())
    with Paced(1e5):
        fit(net, epochs=2)
    gc.check_sync(net)
    assert all(v.numpy().any() for v in opt._reducer.velocities.values())
    assert any(c.any() for c in _contribution(opt))
    return [row[2] for row in opt.plan.rows()]


def a_tape_chooses_too() -> set[str]:
    weights = tf.Variable(tf.zeros([200, 100]))
    with Paced(1e5):
        for _ in range(2):
            with tf.GradientTape() as plain:
                value = tf.reduce_sum(weights**2 - weights * (1 + hvd.rank()))
            tape = hvd.DistributedGradientTape(plain, compression="auto", op=hvd.Average)
            weights.assign_sub(0.1 * tape.gradient(value, weights))
    gc.check_sync([weights])
    (exchange,) = [e for e in gc.report().exchanges if ".tape" in e.name]
    return {v.codec for v in exchange.variables}


def saved_state_goes_on() -> None:
    """What was saved while gradients were compressed is sent when they are no longer."""
    folder = FOLDER / "auto"
    chooser_module.FIRST_LOOK = 3
    with Paced(1e5) as link:
        net = network(TWO)
        fit(net)
        kept = hvd.allgather_object(_contribution(net.optimizer))
        assert any(c.any() for c in kept[0])
        gc.save_state(folder, model=net)
        link.rate = 1e12
        fit(net, epochs=4)
        assert codecs_of(net.optimizer.plan) == {"none"}
        assert not any(c.any() for c in _contribution(net.optimizer))
        gc.restore_state(folder, model=net)
        again = hvd.allgather_object(_contribution(net.optimizer))
        for saved, restored in zip(kept, again, strict=True):
            for before, after in zip(saved, restored, strict=True):
                np.testing.assert_array_equal(before, after)
        fit(net)
    chooser_module.FIRST_LOOK = 100
    assert not any(c.any() for c in _contribution(net.optimizer))
    gc.check_sync(net)


def what_it_cannot_do_is_refused() -> list[str]:
    told = []
    for attempt in (
        lambda: hvd.allreduce(tf.ones(2000), compression="auto"),
        lambda: gc.all_reduce(tf.ones(2000), gc.Policy(None, rules=[("", gc.Auto())])),
        lambda: gc.Auto().encode(np.ones(3, np.float32)),
        lambda: gc.Warmup("auto", start="none"),
    ):
        try:
            attempt()
        except (ValueError, gc.CodecError) as error:
            told.append(str(error))
    return told


def disabled() -> set[str]:
    os.environ["GRADCOMP_DISABLE"] = "1"
    try:
        with Paced(1e5):
            net = network()
            fit(net)
    finally:
        del os.environ["GRADCOMP_DISABLE"]
    assert not net.optimizer.plan.decides
    return codecs_of(net.optimizer.plan)


def ranks_that_allow_different_errors_are_told() -> str:
    try:
        net = network(gc.Auto(max_error=0.01 if hvd.rank() else 0.15))
        fit(net)
    except gc.MismatchError as error:
        return str(error)
    raise AssertionError("they did not notice")


def _checked(check: Any, name: str) -> Any:
    return lambda: check(HorovodCollective(), f"test.auto.{name}")


SCENARIOS = {
    "graph": _checked(a_graph_is_traced_once, "graph"),
    "restored": _checked(what_was_restored_is_sent, "restored"),
    "alike": _checked(ranks_decide_alike_though_they_measure_different_things, "alike"),
    "it_measures_tells_and_reports": it_measures_tells_and_reports,
    "none_is_told_too": none_is_told_too,
    "the_choice_follows_the_link": the_choice_follows_the_link_in_a_compiled_step,
    "a_rule": a_rule_chooses_beside_a_warm_up_with_momentum_correction,
    "a_tape_chooses_too": a_tape_chooses_too,
    "saved_state_goes_on": saved_state_goes_on,
    "what_it_cannot_do_is_refused": what_it_cannot_do_is_refused,
    "disabled": disabled,
    "ranks_that_allow_different_errors_are_told": ranks_that_allow_different_errors_are_told,
}
