"""The layers of a model that packing deals with as a whole, by path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras

from gradcomp.activations.install import is_leaf, packs_by_itself


@dataclass(frozen=True)
class Unit:
    """A layer.

    Attributes:
      path: names of the layers from the model's own down to this one, joined by "/"; a layer that
        occurs twice has the first.
      layer: the layer.
      owners: the layers that it is in, the model first.
    """

    path: str
    layer: Any
    owners: tuple[Any, ...]

    def isa(self, kind: type) -> bool:
        """Whether the layer, or one that it is in, is of a class."""
        return any(isinstance(layer, kind) for layer in (self.layer, *self.owners))


def units(model: Any) -> list[Unit]:
    """The units of a model, in its order, each once."""
    found: dict[int, Unit] = {}
    for unit in _units("", model, ()):
        found.setdefault(id(unit.layer), unit)
    return list(found.values())


def _units(path: str, layer: Any, owners: tuple[Any, ...]) -> Iterator[Unit]:
    # Inside of attention are dense layers with formulas, but who names it means all of it.
    if is_leaf(layer) or isinstance(layer, keras.layers.MultiHeadAttention):
        if not isinstance(layer, keras.layers.InputLayer):
            yield Unit(path or layer.name, layer, owners)
        return
    if packs_by_itself(layer):
        yield Unit(path or layer.name, layer, owners)
    for inner in layer._layers:
        yield from _units(f"{path}/{inner.name}".strip("/"), inner, (*owners, layer))
