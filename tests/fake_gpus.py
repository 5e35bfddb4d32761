"""GPUs by a fake of TensorFlow's calls."""

from typing import Any

import pytest
import tensorflow as tf

from gradcomp.memory.usage import MIB


class FakeGpus:
    """GPUs that behave as TensorFlow's context does, with the same errors."""

    def __init__(self, count: int) -> None:
        self.physical = [f"physical GPU {index}" for index in range(count)]
        self.visible = list(self.physical)
        self.limits: dict[str, list[Any]] = {}
        self.grow: dict[str, bool] = {}
        self.initialised = False
        self.memory = {
            f"GPU:{i}": {"current": (10 + i) * MIB, "peak": 99 * MIB} for i in range(count)
        }

    def list_physical_devices(self, kind: str) -> list[str]:
        assert kind == "GPU"
        return self.physical

    def list_logical_devices(self, kind: str) -> list[str]:
        return self.list_physical_devices(kind)

    def get_visible_devices(self, kind: str) -> list[str]:
        assert kind == "GPU"
        return self.visible

    def set_visible_devices(self, devices: list[str], kind: str) -> None:
        assert kind == "GPU"
        self.visible = devices

    def get_logical_device_configuration(self, gpu: str) -> list[Any] | None:
        return self.limits.get(gpu)

    def set_logical_device_configuration(self, gpu: str, configuration: list[Any]) -> None:
        if self.initialised:
            raise RuntimeError("Virtual devices cannot be modified after being initialized")
        self.limits[gpu] = configuration

    def get_memory_growth(self, gpu: str) -> bool | None:
        return self.grow.get(gpu)

    def set_memory_growth(self, gpu: str, enable: bool) -> None:
        if self.initialised:
            raise RuntimeError("Physical devices cannot be modified after being initialized")
        self.grow[gpu] = enable

    def get_memory_info(self, name: str) -> dict[str, int]:
        return self.memory[name]

    def reset_memory_stats(self, name: str) -> None:
        self.memory[name]["peak"] = self.memory[name]["current"]


EXPERIMENTAL = ("get_memory_growth", "set_memory_growth", "get_memory_info", "reset_memory_stats")


def install(monkeypatch: pytest.MonkeyPatch, count: int) -> FakeGpus:
    """Puts `count` fakes in the place of TensorFlow's GPUs until the test ends."""
    fakes = FakeGpus(count)
    for name in dir(fakes):
        if name.startswith(("get_", "set_", "list_", "reset_")):
            module = tf.config.experimental if name in EXPERIMENTAL else tf.config
            monkeypatch.setattr(module, name, getattr(fakes, name))
    return fakes
