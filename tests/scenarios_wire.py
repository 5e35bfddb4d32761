"""Back-to-back exchanges of large payloads, and what the network interface counted meanwhile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

import gradcomp.horovod as hvd

EXCHANGES = 8
NUMEL = {"none": 2**21, "fp16": 2**22, "quantize:bits=8": 2**23, "quantize:bits=4": 2**23}
NUMEL["topk:density=0.1"] = 2**24


def interface_bytes() -> int:
    """Bytes sent on the loopback interface so far, by all ranks together."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[8])
    raise RuntimeError("no loopback interface")


def exchanges(spec: str) -> dict[str, int]:
    variable = tf.Variable(tf.zeros((NUMEL[spec],)))
    gradient = tf.constant(
        np.random.default_rng(hvd.rank()).standard_normal(NUMEL[spec]), tf.float32
    )

    @tf.function
    def step(g):
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(variable * g)
        tape = hvd.DistributedGradientTape(tape, compression=_named(spec))
        return tape.gradient(value, [variable])

    step(gradient)
    reducer = _reducer_of(variable)
    hvd.allgather_object(0)
    before, counted = interface_bytes(), reducer.traffic().sent_bytes
    for _ in range(EXCHANGES):
        step(gradient)
    # The other rank may still be sending its last bytes.
    hvd.allgather_object(0)
    return {
        "interface": interface_bytes() - before,
        "sent": reducer.traffic().sent_bytes - counted,
        "payload": reducer.plan.payload_bytes,
    }


def _named(spec: str):
    """A policy that compresses a vector: rank 1 tensors are left dense unless a rule names them."""
    import gradcomp as gc

    return gc.Policy(None, rules=[("", spec)])


def _reducer_of(variable: tf.Variable):
    from gradcomp.horovod import tape

    return next(r for (ids, _), r in tape._reducers.items() if ids == (id(variable),))


SCENARIOS = {spec: (lambda spec=spec: exchanges(spec)) for spec in NUMEL}
