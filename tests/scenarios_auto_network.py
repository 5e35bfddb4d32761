"""`gc.Auto` between hosts whose links are slowed down while a model trains."""

from __future__ import annotations

import subprocess
from typing import Any

import keras
import numpy as np
from scenarios_training import loss

import gradcomp as gc
import gradcomp.horovod as hvd
from bench.hosts import INTERFACE, sent_bytes
from gradcomp import chooser as chooser_module

_SHAPE = ("root", "tbf", "burst", "512k", "latency", "100ms")
STEPS, ROWS = 6, 8


def slow_down(rate: str) -> None:
    """Of this host's link, towards the switch."""
    command = ["tc", "qdisc", "change", "dev", INTERFACE, *_SHAPE, "rate", rate]
    subprocess.run(command, check=True)
    hvd.allgather_object(0)


def network() -> keras.Model:
    """1.2 million parameters, of which most are in two variables."""
    keras.utils.set_random_seed(3)
    net = keras.Sequential(
        [keras.Input((512,)), keras.layers.Dense(1024), keras.layers.Dense(640, "relu")]
    )
    net.add(keras.layers.Dense(4))
    net.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), compression="auto"), loss())
    return net


def fit(net: keras.Model) -> None:
    rng = np.random.default_rng(hvd.rank())
    x = rng.standard_normal((STEPS * ROWS, 512)).astype(np.float32)
    net.fit(x, x[:, :4].argmax(1), batch_size=ROWS, verbose=0, shuffle=False)


def told_of(net: keras.Model) -> dict[str, Any]:
    """What is sent by the plan, and by the interface in an epoch."""
    hvd.allgather_object(0)
    before = sent_bytes()
    fit(net)
    hvd.allgather_object(0)
    plan, link = net.optimizer.plan, net.optimizer._reducer.chooser._link
    return {
        "chosen": plan.chosen,
        "planned": plan.sent_bytes,
        "uncompressed": plan.dense_bytes,
        "interface": (sent_bytes() - before) / STEPS,
        "bandwidth": link.bandwidth,
    }


def it_follows_the_link() -> list[dict[str, Any]]:
    """A run that began on a fast link, while that gets slow; and one that begins on a slow one."""
    chooser_module.FIRST_LOOK = 3
    net = network()
    fit(net)
    slow_down("100mbit")
    for _ in range(4):
        fit(net)
    changed = told_of(net)
    other = network()
    fit(other)
    told = [changed, told_of(other)]
    slow_down("1gbit")
    gc.check_sync(net)
    gc.check_sync(other)
    return told


SCENARIOS = {"it_follows_the_link": it_follows_the_link}
