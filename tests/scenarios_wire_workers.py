"""Back-to-back exchanges between hosts' workers, and what each host's interface sent meanwhile."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from scenarios_workers import INDEX, gathered

import gradcomp as gc
from bench.hosts import sent_bytes

EXCHANGES = 4
# By the route that gradients take among three workers: their codec, and how many.
ROUTES = {
    "dense": ("none", 2 << 20),
    "all_gather": ("topk:density=0.1", 8 << 20),
    "two_phase": ("quantize:bits=4", 8 << 20),
}


def exchanges(strategy: Any, *routes: str) -> dict[str, Any]:
    """Of one variable for each of the routes, by one optimizer."""
    with strategy.scope():
        variables = [keras.Variable(np.zeros(ROUTES[r][1], "f4"), name=r) for r in routes]
        rules = [(route, codec) for route, (codec, _) in ROUTES.items()]
        opt = gc.DistributedOptimizer(keras.optimizers.SGD(0.1), gc.Policy(None, rules=rules))
        opt.build(variables)
    assert {row[-1] for row in opt.plan.rows()} == set(routes)
    rng = np.random.default_rng(INDEX)
    gradients = [tf.constant(rng.standard_normal(ROUTES[r][1], "f4")) for r in routes]

    @tf.function
    def step(gradients: list[tf.Tensor]) -> None:
        strategy.run(lambda *g: opt.apply(list(g), variables), args=gradients)

    step(gradients)
    gathered(strategy, 0)
    before, counted = sent_bytes(), opt.traffic().sent_bytes
    for _ in range(EXCHANGES):
        step(gradients)
    gathered(strategy, 0)  # all have got all
    return {
        "interface": sent_bytes() - before,
        "counted": opt.traffic().sent_bytes - counted,
        "plan": EXCHANGES * opt.plan.sent_bytes,
        "uncompressed": EXCHANGES * opt.plan.dense_bytes,
    }


SCENARIOS = {route: lambda s, r=route: exchanges(s, r) for route in ROUTES}
SCENARIOS["all"] = lambda strategy: exchanges(strategy, *ROUTES)
