"""A training under one reduction, in a process of its own, that makes steps when it is asked to.

It first writes a line of JSON about its first steps. For each line of JSON that it reads, a number
of steps, it writes the list of their durations in seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # the same run on every machine

import keras
import numpy as np
import tensorflow as tf

import gradcomp as gc
from bench.overhead.variants import VARIANTS, Variant
from bench.replicas import REPLICAS, make_strategy

_LAYERS = 6
_IMAGES = 4  # a replica and step: few, so that reducing is a large part of a step
_CHECKED_STEPS = 3


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parse(argv)
    variant = VARIANTS[arguments.variant]
    strategy = make_strategy(len(os.sched_getaffinity(0)), _cross_device_ops(variant))
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.Input((arguments.width,))]
            + [keras.layers.Dense(arguments.width, activation="relu") for _ in range(_LAYERS)]
        )
        optimizer: Any = keras.optimizers.SGD(0.01)
        if variant.kind == "optimizer":
            optimizer = gc.DistributedOptimizer(optimizer, variant.choice)
        optimizer.build(model.trainable_variables)
    step = _step(strategy, model, optimizer)
    losses = [step() for _ in range(_CHECKED_STEPS)]
    print(json.dumps(_checked(strategy, model, losses)), flush=True)
    for line in sys.stdin:
        print(
            json.dumps({"seconds": [_seconds(step) for _ in range(json.loads(line))]}), flush=True
        )


def _cross_device_ops(variant: Variant) -> tf.distribute.CrossDeviceOps | None:
    if variant.kind == "hook":
        return gc.CompressedAllReduce(variant.choice)
    if variant.kind == "tensorflow" and variant.choice:
        return getattr(tf.distribute, variant.choice)()
    return None


def _step(strategy: tf.distribute.Strategy, model: Any, optimizer: Any) -> Callable[[], float]:
    """A training step that has ended when it returns the loss."""
    random = np.random.default_rng(0)
    shape = (REPLICAS, 2, _IMAGES, *model.input_shape[1:])
    data = tf.constant(random.standard_normal(shape, dtype=np.float32))
    batch = strategy.experimental_distribute_values_from_function(
        lambda context: data[context.replica_id_in_sync_group]
    )

    def train(batch: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            error = model(batch[0], training=True) - batch[1]
            loss = tf.reduce_mean(tf.square(error)) / REPLICAS
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    @tf.function
    def step(batch: Any) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(train, args=(batch,)), axis=None)

    return lambda: float(step(batch))


def _checked(strategy: tf.distribute.Strategy, model: Any, losses: list[float]) -> dict[str, Any]:
    """What the first steps came to. `weights` digests one replica's, `equal` compares both."""
    replicas = zip(
        *(strategy.experimental_local_results(v.value) for v in model.trainable_variables),
        strict=True,
    )
    digests = []
    finite = bool(np.isfinite(losses).all())
    for weights in replicas:
        digest = hashlib.sha256()
        for weight in weights:
            array = weight.numpy()
            digest.update(array.tobytes())
            finite = finite and bool(np.isfinite(array).all())
        digests.append(digest.hexdigest())
    return {
        "parameters": model.count_params(),
        "losses": losses,
        "finite": finite,
        "equal": len(set(digests)) == 1,
        "weights": digests[0],
    }


def _seconds(step: Callable[[], float]) -> float:
    begun = time.perf_counter()
    step()
    return time.perf_counter() - begun


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.overhead.train", description=__doc__)
    parser.add_argument("--variant", type=int, default=0, help="index in VARIANTS")
    parser.add_argument("--width", type=int, default=2048, help="of the model's layers")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
