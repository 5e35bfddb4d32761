"""Trains for a long time on several processes and says whether memory stays flat.

    python -m bench.soak --minutes 60

Each rank trains a model with an embedding by `fit`, saves its state, trains another with a loop of
its own, reduces single tensors with feedback, and retraces, round after round. The resident memory
of every rank after each round is a JSON line; after a warm-up it must not grow.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.demo.launch import ROOT

_MAX_GROWTH = 0.02
_WARM_UP_SHARE = 0.2  # allocators and TensorFlow's caches fill at first
_STEPS = 100


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 if the memory of all ranks stays flat."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rank-program", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.rank_program:
        _train(60 * arguments.minutes)
        return 0
    command = [
        *(sys.executable, "-m", "horovod.runner.launch", "-np", str(arguments.ranks), "--gloo"),
        *(sys.executable, "-u", "-m", "bench.soak", "--rank-program"),
        *("--minutes", str(arguments.minutes)),
    ]
    rounds = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            _, marker, record = line.partition("soak: ")
            if marker:
                rounds.append(json.loads(record))
                print(record.strip(), flush=True)
    if process.returncode or not rounds:
        print(f"the ranks ended with status {process.returncode}")
        return 1
    return _judge(rounds)


def _judge(rounds: list[dict[str, Any]]) -> int:
    settled = rounds[int(_WARM_UP_SHARE * len(rounds)) :]
    third = max(1, len(settled) // 3)
    worst = 0.0
    for rank, memories in enumerate(zip(*(r["resident_mb"] for r in settled), strict=True)):
        first, last = statistics.median(memories[:third]), statistics.median(memories[-third:])
        worst = max(worst, last / first - 1)
        print(f"rank {rank}: {first:.0f} MB at first, {last:.0f} MB at the end")
    verdict = "flat" if worst <= _MAX_GROWTH else f"grows, at most {_MAX_GROWTH:.0%} is allowed"
    print(
        f"memory is {verdict}: {worst:+.1%} over {rounds[-1]['minutes']:.0f} minutes, "
        f"{len(rounds)} rounds, {rounds[-1]['steps']:,} steps"
    )
    return 0 if worst <= _MAX_GROWTH else 1


def _train(seconds: float) -> None:
    """One rank: rounds until rank 0 has trained for `seconds`."""
    import gradcomp.horovod as hvd

    hvd.init()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gradcomp-soak-") as folder:
        # All ranks save into one folder.
        shared = Path(hvd.broadcast_object(folder, root_rank=0, name="folder"))
        for number, _ in enumerate(_rounds(shared)):
            memories = hvd.allgather_object(_resident_mb(), name="memory")
            minutes = (time.monotonic() - begun) / 60
            if hvd.rank() == 0:
                steps = (number + 1) * 3 * _STEPS
                record = {"minutes": round(minutes, 2), "steps": steps, "resident_mb": memories}
                print("soak: " + json.dumps(record))
            if hvd.broadcast_object(60 * minutes >= seconds, root_rank=0, name="end"):
                break
    hvd.shutdown()


def _rounds(folder: Path) -> Iterator[None]:
    import keras
    import numpy as np
    import tensorflow as tf

    import gradcomp as gc
    import gradcomp.horovod as hvd

    keras.utils.set_random_seed(1 + hvd.rank())
    random = np.random.default_rng(hvd.rank())
    model = keras.Sequential(
        [
            keras.layers.Input((16,), dtype="int32"),
            keras.layers.Embedding(5000, 32),
            keras.layers.Flatten(),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compression = gc.Policy(gc.TopK(density=0.01), rules=[("embedding", gc.Quantize(bits=8))])
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3), compression=compression), loss_fn
    )
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        gc.SaveState(folder, every=_STEPS // 2),
        gc.CheckSync(every=_STEPS // 2),
    ]
    other = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(512)])
    optimizer = keras.optimizers.SGD(1e-3)
    state = hvd.FeedbackState()

    @tf.function(reduce_retracing=True)
    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(other(x, training=True) - y))
        tape = hvd.DistributedGradientTape(tape, compression=gc.Quantize(bits=4))
        gradients = tape.gradient(loss, other.trainable_variables)
        optimizer.apply(gradients, other.trainable_variables)

    while True:
        tokens = random.integers(0, 5000, (_STEPS * 32, 16), dtype=np.int32)
        labels = random.integers(0, 10, _STEPS * 32, dtype=np.int32)
        model.fit(tokens, labels, batch_size=32, verbose=0, callbacks=callbacks)
        for _ in range(_STEPS):
            rows = int(random.integers(1, 64))  # another length each time, on each rank
            x = random.standard_normal((rows, 64), dtype=np.float32)
            step(x, np.zeros((rows, 512), np.float32))
            tensor = random.standard_normal(10_000, dtype=np.float32)
            hvd.allreduce(tensor, compression="topk:density=0.01", state=state)
        yield


def _resident_mb() -> float:
    """Of this process, as the kernel counts it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * 4096 / 2**20, 1)


if __name__ == "__main__":
    sys.exit(main())
