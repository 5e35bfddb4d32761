"""Packed activations beside compressed gradients, on two replicas and on two ranks."""

from pathlib import Path

from ranks import launch, values
from strategies import launch_devices


def test_mirrored(tmp_path: Path) -> None:
    (told,) = values(
        launch_devices("scenarios_activations", tmp_path), "with_compressed_gradients", 1
    )
    assert told["quantize:bits=8 None"] > 0


def test_horovod(tmp_path: Path) -> None:
    told = values(launch("scenarios_activations_ranks", 2, tmp_path), "on_ranks", 2)
    assert told[0] == told[1]
    assert told[0]["quantize:bits=8 None"] > 0
