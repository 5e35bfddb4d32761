"""Every Keras optimizer, distributed, does what it does in one process with the whole batch."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from scenarios_callbacks import fails
from scenarios_training import data, loss, model, weights_agree

import gradcomp as gc
import gradcomp.horovod as hvd
from gradcomp.wrap import built_in

STEPS, ROWS = 4, 24
schedules = keras.optimizers.schedules

# Beside a learning rate that falls, what all optimizers have in common. Thresholds are such that
# clipping bites, and would give another result on one rank's gradient.
COMMON = {
    "global_clipnorm": {"global_clipnorm": 0.3, "weight_decay": 0.01},
    "clipnorm": {
        "clipnorm": 0.1,
        "use_ema": True,
        "ema_momentum": 0.7,
        "ema_overwrite_frequency": 2,
    },
    "clipvalue": {"clipvalue": 0.01, "gradient_accumulation_steps": 2},
}
# The options are the base class's, so that the others take turns.
THOROUGHLY = (keras.optimizers.SGD, keras.optimizers.AdamW)


def rate() -> schedules.LearningRateSchedule:
    return schedules.ExponentialDecay(0.003, decay_steps=2, decay_rate=0.7)


def batches() -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """Each step's batches of all ranks."""
    shards = [data(rank) for rank in range(hvd.size())]
    cut = [slice(i * ROWS, (i + 1) * ROWS) for i in range(STEPS)]
    return [[(x[c], y[c]) for x, y in shards] for c in cut]


def gradients_of(net: keras.Model, x: np.ndarray, y: np.ndarray) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        value = loss()(y, net(x, training=True))
    return tape.gradient(value, [v.value for v in net.trainable_variables])


def train(opt, pick: Callable[[list], tuple[np.ndarray, np.ndarray]]) -> keras.Model:
    net = model(seed=1)
    opt.build(net.trainable_variables)
    for step in batches():
        opt.apply(gradients_of(net, *pick(step)), net.trainable_variables)
    opt.finalize_variable_values(net.trainable_variables)
    return net


def whole(step: list) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.concatenate(parts) for parts in zip(*step, strict=True))


def furthest(ours, theirs) -> float:
    pairs = zip(ours, theirs, strict=True)
    return max(np.abs(np.asarray(a) - np.asarray(b)).max() for a, b in pairs)


def options_of(cls: type, index: int) -> list[str]:
    """The options of COMMON that an optimizer is tried with: all, or one in turn."""
    return list(COMMON) if cls in THOROUGHLY else [list(COMMON)[index % len(COMMON)]]


def every_optimizer_equals_one_process() -> dict[str, float]:
    """Returns how far the weights are from those of one process, for each optimizer and option."""
    told = {}
    for index, cls in enumerate(built_in()):
        for name in options_of(cls, index):
            options = COMMON[name]
            alone = cls(learning_rate=rate(), **options)
            ours = hvd.DistributedOptimizer(cls(learning_rate=rate(), **options))
            expected = train(alone, whole)
            net = train(ours, lambda step: step[hvd.rank()])
            assert weights_agree(net)
            told[f"{cls.__name__} {name}"] = furthest(net.get_weights(), expected.get_weights())
            assert len(ours.variables) == len(alone.variables)
            assert ours.iterations.numpy() == alone.iterations.numpy()
            config = ours.get_config()
            del config["gradcomp"], config["name"]
            theirs = alone.get_config()
            del theirs["name"]
            assert config == theirs
    return told


def clipping_would_differ_on_one_ranks_gradient() -> dict[str, float]:
    """How far clipping before the mean would be from clipping after it: the test above can fail."""
    told = {}
    for name in COMMON:
        option = {k: v for k, v in COMMON[name].items() if k.startswith(("clip", "global"))}
        clip = keras.optimizers.SGD(0.1, **option)._clip_gradients
        net, step = model(seed=1), batches()[0]
        each = [clip(gradients_of(net, *part)) for part in step]
        before = [np.mean([g[i] for g in each], axis=0) for i in range(len(each[0]))]
        told[name] = furthest(before, clip(gradients_of(net, *whole(step))))
    return told


def configs_make_equal_optimizers() -> None:
    policy = gc.Policy("fp16", rules=[("bias", None)])
    for cls in built_in():
        ours = hvd.DistributedOptimizer(
            cls(learning_rate=rate(), clipnorm=1.0), compression=policy, op=hvd.Sum, seed=3
        )
        again = type(ours).from_config(ours.get_config())
        assert type(again) is type(ours)
        assert isinstance(again, cls)
        assert again.options == ours.options
        assert again.get_config() == ours.get_config()
        stored = keras.optimizers.deserialize(keras.optimizers.serialize(ours))
        assert stored.options == ours.options


def fit_with_several_steps_an_execution() -> dict[str, float]:
    """`fit` on each rank's share of each batch equals `fit` of one process on whole batches."""
    told = {}
    for executions, accumulated in ((4, None), (2, 2)):
        options = {
            "gradient_accumulation_steps": accumulated,
            "use_ema": True,
            "weight_decay": 0.01,
        }
        nets = []
        for opt, pick in (
            (
                hvd.DistributedOptimizer(keras.optimizers.Adam(0.003, **options)),
                lambda s: s[hvd.rank()],
            ),
            (keras.optimizers.Adam(0.003, **options), whole),
        ):
            x, y = map(np.concatenate, zip(*map(pick, batches()), strict=True))
            net = model(seed=1)
            net.compile(opt, loss(), steps_per_execution=executions)
            net.fit(x, y, batch_size=len(y) // STEPS, epochs=2, verbose=0, shuffle=False)
            nets.append(net.get_weights())
        told[f"{executions} {accumulated}"] = furthest(*nets)
    return told


LOADS = """
import sys, keras, numpy, gradcomp.horovod as hvd
hvd.init()
for path in sys.argv[1:]:
    model = keras.models.load_model(path)
    opt = model.optimizer
    print(type(opt).__name__, opt.options.policy.default.spec, int(opt.iterations.numpy()))
    model.fit(numpy.zeros((4, 20)), numpy.zeros(4), verbose=0)
    print(opt.alone)
"""


def models_load_in_a_process_that_imports_gradcomp() -> None:
    """Trained, saved, loaded in a fresh process, whose optimizer goes on from the same state."""
    x, y = data(hvd.rank())
    classes = (keras.optimizers.SGD, keras.optimizers.AdamW, keras.optimizers.Lion)
    with tempfile.TemporaryDirectory() as folder:
        for cls in classes:
            net = model(seed=1)
            net.compile(hvd.DistributedOptimizer(cls(0.01), compression="quantize:bits=8"), loss())
            net.fit(x, y, batch_size=24, epochs=1, verbose=0)
            net.save(f"{folder}/{cls.__name__}.keras")
        if hvd.rank() == 0:
            environment = {k: v for k, v in os.environ.items() if not k.startswith("HOROVOD_")}
            paths = [f"{folder}/{cls.__name__}.keras" for cls in classes]
            command = [sys.executable, "-W", "ignore", "-c", LOADS, *paths]
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            told = [f"Distributed{cls.__name__} quantize:bits=8 4\nTrue" for cls in classes]
            assert done.stdout.splitlines() == "\n".join(told).splitlines()
    hvd.broadcast_object(None)  # the others wait here, and not in the next scenario


def any_saved_model_is_loaded_to_be_distributed() -> None:
    x, y = data(hvd.rank())
    net = model(seed=1)
    net.compile(keras.optimizers.Adam(0.01), loss())
    net.fit(*data(0), batch_size=24, epochs=1, verbose=0, shuffle=False)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "m.keras")
        net.save(path)
        loaded = hvd.load_model(path, compression="fp16")
    assert loaded.optimizer.options.policy == gc.Policy("fp16")
    assert loaded.optimizer.iterations.numpy() == 4
    loaded.fit(x, y, batch_size=24, epochs=1, verbose=0)
    assert loaded.optimizer.traffic().steps == 4
    assert weights_agree(loaded)
    assert "legacy" in fails(lambda: hvd.load_model(path, legacy_opts=True), ValueError)


def what_cannot_be_distributed_is_refused() -> str:
    several = keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.1))
    return fails(
        lambda: hvd.DistributedOptimizer(keras.optimizers.MultiOptimizer(several)), TypeError
    )


SCENARIOS = {
    f.__name__: f
    for f in (
        every_optimizer_equals_one_process,
        clipping_would_differ_on_one_ranks_gradient,
        configs_make_equal_optimizers,
        fit_with_several_steps_an_execution,
        models_load_in_a_process_that_imports_gradcomp,
        any_saved_model_is_loaded_to_be_distributed,
        what_cannot_be_distributed_is_refused,
    )
}
