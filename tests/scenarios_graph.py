"""What a traced training step contains: read from the graph, on Horovod ranks."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import horovod.tensorflow as real_horovod
import keras
import numpy as np
import tensorflow as tf

import gradcomp as gc
import gradcomp.horovod as hvd
from gradcomp.kernels import gpu
from gradcomp.plan import Plan

SPECS = (
    "none",
    "fp16",
    "quantize:bits=4",
    "sign",
    "topk:density=0.01",
    "topk:density=0.01,values=(quantize:bits=4)",
)


def step_with(
    spec: str, tensors: int, bucket_bytes: int, tape: type = tf.GradientTape
) -> tuple[tf.Graph, Plan]:
    """The graph of one step over `tensors` matrices, and its plan."""
    variables = [tf.Variable(np.ones((40, 40), np.float32), name=f"v{i}") for i in range(tensors)]
    variables.append(tf.Variable(np.ones(3, np.float32), name="bias"))

    @tf.function(autograph=False)
    def step(x):
        with tape() as inner:
            value = tf.add_n([tf.reduce_sum(v * v * x) for v in variables])
        outer = hvd.DistributedGradientTape(inner, compression=spec, bucket_bytes=bucket_bytes)
        return outer.gradient(value, variables)

    graph = step.get_concrete_function(tf.constant(2.0)).graph
    return graph, gc.Policy(spec).plan(variables, hvd.size(), bucket_bytes)


def operations(graph: tf.Graph) -> list[tf.Operation]:
    return [op for op in graph.get_operations() if op.type.startswith(("Gradcomp", "Horovod"))]


def collectives_carry_payloads() -> dict[str, dict]:
    """For each codec: type, dtype and bytes of the collectives' inputs, and the plan's buckets."""
    told = {}
    for spec in SPECS:
        graph, plan = step_with(spec, tensors=6, bucket_bytes=20_000)
        found = [
            (op.type, [(t.dtype.name, t.dtype.size * t.shape.num_elements()) for t in op.inputs])
            for op in operations(graph)
            if op.type.startswith("Horovod")
        ]
        told[spec] = {
            "collectives": found,
            "buckets": [
                (b.route, b.raw_bytes, b.payload_bytes, [c.payload_bytes for c in b.chunks])
                for b in plan.buckets
            ],
        }
    return told


def one_op_a_bucket_and_phase() -> dict[str, dict]:
    """300 tensors: how many gradcomp ops, and how many concatenations and splits of floats."""
    told = {}
    for spec in ("quantize:bits=4", "topk:density=0.01"):
        graph, plan = step_with(spec, tensors=300, bucket_bytes=500_000)
        counts = Counter(op.type for op in graph.get_operations())
        told[spec] = {
            "ops": {t: n for t, n in counts.items() if t.startswith(("Gradcomp", "Horovod"))},
            "copies": {t: n for t, n in counts.items() if t in ("ConcatV2", "Split", "SplitV")},
            "routes": Counter(b.route for b in plan.buckets),
        }
    return told


class OnGpu(tf.GradientTape):
    """A tape whose gradients are on a GPU, in a graph that never runs."""

    def gradient(self, *args, **kwargs):
        with tf.device("/GPU:0"):
            return [tf.identity(g) for g in super().gradient(*args, **kwargs)]


def gradients_stay_on_the_gpu() -> dict[tuple[str, bool], dict[str, set]]:
    """By codec, and whether Horovod has NCCL: devices of ops, and what crosses to the host."""
    loaded = mock.patch.object(gpu, "_loading", gpu.Loading(True))
    told = {}
    for spec in ("quantize:bits=4", "topk:density=0.01"):
        for nccl in (False, True):
            built = mock.patch.object(real_horovod, "nccl_built", return_value=nccl)
            with loaded, built:
                graph, _ = step_with(spec, tensors=6, bucket_bytes=20_000, tape=OnGpu)
            crossing = {
                (tensor.dtype.name, op.type)
                for op in graph.get_operations()
                for tensor in op.inputs
                if "GPU:0" in tensor.op.device and "CPU:0" in op.device
            }
            gradcomp = [op for op in operations(graph) if op.type.startswith("Gradcomp")]
            tables = {
                (tensor.op.device, tensor.dtype.name)
                for op in gradcomp
                for tensor in op.inputs
                if tensor.dtype == tf.int64 or tensor.shape == []
            }
            told[spec, nccl] = {
                "kernels": {(op.type, op.device) for op in gradcomp},
                "carriers": {
                    (op.type, op.device)
                    for op in operations(graph)
                    if op.type in ("HorovodAllgather", "HorovodAlltoall")
                },
                "crossing": crossing,
                "tables": tables,
            }
    return told


def a_step_is_traced_once() -> dict[str, int]:
    """How often the Python code of a step runs, when the step does: a tape's, and that of `fit`."""
    traces = dict.fromkeys(("tape", "fit"), 0)
    weight = tf.Variable(np.ones((40, 40), np.float32))

    @tf.function(autograph=False)
    def step():
        traces["tape"] += 1
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(weight * weight)
        tape = hvd.DistributedGradientTape(tape, compression="quantize:bits=4")
        return tape.gradient(value, weight)

    for _ in range(2):
        step()

    class Counted(keras.Sequential):
        def train_step(self, data):
            traces["fit"] += 1
            return super().train_step(data)

    model = Counted([keras.Input((40,)), keras.layers.Dense(40)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(), compression="topk:density=0.01")
    model.compile(optimizer, "mse")
    model.fit(np.ones((4, 40)), np.ones((4, 40)), batch_size=2, verbose=0)
    return traces


SCENARIOS = {
    f.__name__: f
    for f in (
        collectives_carry_payloads,
        one_op_a_bucket_and_phase,
        gradients_stay_on_the_gpu,
        a_step_is_traced_once,
    )
}
