"""Packed activations beside compressed gradients, on two replicas and on two ranks."""

from pathlib import Path
from typing import Any

from ranks import launch, values
from strategies import launch_devices


def check(outcomes: Any, name: str, processes: int) -> None:
    packed, compiled = values(outcomes, name, processes), values(outcomes, "in_xla", processes)
    for told in (packed, compiled):
        print(told[0])
        assert all(rank == told[0] for rank in told)
    # What loses bits was really there.
    assert packed[0]["layers, 8 bits"] > 0
    assert packed[0]["pack_model, 8 bits"] > 0


def test_mirrored(tmp_path: Path) -> None:
    launched = launch_devices("scenarios_activations", tmp_path)
    check(launched, "with_compressed_gradients", 1)
    values(launched, "planned", 1)


def test_horovod(tmp_path: Path) -> None:
    check(launch("scenarios_activations_ranks", 2, tmp_path), "on_ranks", 2)
