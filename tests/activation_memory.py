"""Peak memory of a graph's step, in a process of its own: `activation_memory.py MODE`.

Prints the peak above what the process holds before the step, in bytes.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import lean
import numpy as np

with lean.importing():
    import keras
    import tensorflow as tf

    import gradcomp as gc
    from gradcomp.activations import pack

LAYERS, WIDTH, ROWS = 24, 256, 8192  # 8 MiB a tensor


def thin(mode: str) -> list[Any]:
    """Layers of gelu(x·W), as `mode` has them."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(WIDTH, activation="gelu") for _ in range(LAYERS)]
    for layer in layers:
        layer.build((None, WIDTH))
    if mode.split("+")[0] == "plain":
        return layers
    if mode == "recompute_grad":
        return [tf.recompute_grad(layer) for layer in layers]
    spec, recompute = mode.split("+")[0], True if "+recompute" in mode else None
    return [gc.pack_activations(layer, spec, recompute) for layer in layers]


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def main(mode: str) -> None:
    if "+open" in mode:  # nothing waits for the gradients from above
        tf.control_dependencies = lambda inputs: contextlib.nullcontext()
        pack._wait = lambda payload, after: payload
    layers = thin(mode)

    @tf.function(autograph=False, jit_compile="+xla" in mode)
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for layer in layers:
                y = layer(y)
            loss = tf.reduce_mean(tf.square(y))
        return tape.gradient(loss, x)

    x = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
    if "+xla" in mode:  # which compiles for one shape only, and keeps what it has used
        run = step.get_concrete_function(tf.TensorSpec([ROWS, WIDTH]))
    else:
        run = step.get_concrete_function(tf.TensorSpec([None, WIDTH]))
        run(tf.constant(x[:1]))  # what is made once is made here
    x = tf.constant(x)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    gradient = run(x)
    print(status("VmHWM") - before, float(tf.norm(gradient)))
    lean.leave()


if __name__ == "__main__":
    main(sys.argv[1])
