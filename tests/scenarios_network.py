"""Between hosts: weights stay equal, and what is counted is what leaves each host."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from scenarios_training import data, loss, model

import gradcomp as gc
import gradcomp.horovod as hvd
from bench.allreduce.worker import compare
from bench.hosts import sent_bytes
from gradcomp import live

ROUTES = {"topk:density=0.1": "all_gather", "quantize:bits=4": "two_phase"}
EXCHANGES = 4
NUMEL = 8 << 20
COMPARED = ["Horovod float32", "none", "4-bit", "top-k 1 %"]


def training() -> None:
    net = model(seed=hvd.rank())
    opt = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), compression="quantize:bits=4")
    net.compile(opt, loss())
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    net.fit(*data(hvd.rank()), epochs=2, verbose=0, callbacks=[start])
    assert opt.traffic().sent_bytes > 0
    gc.check_sync(net)


def exchanges(spec: str) -> dict[str, int]:
    state = hvd.FeedbackState()
    policy = gc.Policy(None, rules=[("", spec)])
    gradient = tf.Variable(
        np.random.default_rng(hvd.rank()).standard_normal(NUMEL), dtype="float32"
    )

    @tf.function
    def exchange() -> tf.Tensor:
        mean = hvd.allreduce(gradient, compression=policy, state=state)
        return tf.reduce_sum(mean)

    exchange()
    (reducer,) = [r for r in live.reducers().values() if r is state.reducer]
    (bucket,) = reducer.plan.buckets
    assert bucket.route == ROUTES[spec]
    hvd.allgather_object(0)
    before, counted = sent_bytes(), reducer.traffic().sent_bytes
    for _ in range(EXCHANGES):
        exchange()
    # Some of the last bytes may still be on their way.
    hvd.allgather_object(0)
    return {
        "interface": sent_bytes() - before,
        "counted": reducer.traffic().sent_bytes - counted,
        "payload": bucket.payload_bytes,
    }


def all_reduces_are_compared() -> dict[str, Any]:
    """As bench/allreduce does it, which verifies each method first."""
    return compare("small", COMPARED, rounds=1)


SCENARIOS = {
    "training": training,
    "all_reduces_are_compared": all_reduces_are_compared,
    **{spec: (lambda spec=spec: exchanges(spec)) for spec in ROUTES},
}
