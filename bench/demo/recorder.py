"""Writes down what a rank measures while it trains, one JSON object a line."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from pathlib import Path
from typing import Any, TypedDict

import keras

_WARM_UP_STEPS = 20
_PROGRESS_EVERY = 20


class Progress(TypedDict):
    """`of` is the number of steps of the whole training."""

    kind: str
    step: int
    of: int


class Epoch(TypedDict):
    """After an epoch: `accuracy` is the test accuracy in percent, bytes are by this rank so far."""

    kind: str
    epoch: int
    of: int
    accuracy: float
    sent_bytes: int


class Result(TypedDict):
    """After the last step. `digest` is equal on two ranks only if all their weights are."""

    kind: str
    steps: int
    raw_bytes: int
    sent_bytes: int
    compressed_numel: int
    total_numel: int
    step_seconds: float
    digest: str


class Recorder(keras.callbacks.Callback):
    """Appends `Progress`, `Epoch` and at the end one `Result` to the file at `path`.

    Raises:
      OSError: `path` can't be written.
    """

    def __init__(self, path: Path, optimizer: Any) -> None:
        super().__init__()
        self._file = path.open("w", buffering=1)  # by lines: the demo reads while this runs
        self._optimizer = optimizer
        self._durations: list[float] = []
        self._begun = 0.0

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._begun = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._durations.append(time.perf_counter() - self._begun)
        step = len(self._durations)
        of = self.params["epochs"] * self.params["steps"]
        if step % _PROGRESS_EVERY == 0:
            self._write(Progress(kind="progress", step=step, of=of))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        assert logs is not None
        self._write(
            Epoch(
                kind="epoch",
                epoch=epoch + 1,
                of=self.params["epochs"],
                accuracy=round(100 * logs["val_accuracy"], 4),
                sent_bytes=self._optimizer.traffic().sent_bytes,
            )
        )

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        traffic = self._optimizer.traffic()
        warm_up = min(_WARM_UP_STEPS, len(self._durations) // 2)
        digest = hashlib.sha256()
        for weight in self.model.get_weights():
            digest.update(weight.tobytes())
        self._write(
            Result(
                kind="result",
                steps=traffic.steps,
                raw_bytes=traffic.raw_bytes,
                sent_bytes=traffic.sent_bytes,
                compressed_numel=traffic.compressed_numel,
                total_numel=traffic.total_numel,
                step_seconds=statistics.median(self._durations[warm_up:]),
                digest=digest.hexdigest(),
            )
        )
        self._file.close()

    def _write(self, record: Progress | Epoch | Result) -> None:
        self._file.write(json.dumps(record) + "\n")
