"""`pack_model`: which layers of a model pack what they keep, by rules; and what that saves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import keras

from gradcomp.activations.auto import choose
from gradcomp.activations.install import install, uninstall
from gradcomp.activations.mode import plain
from gradcomp.activations.pack import check_codec, runs_in_xla
from gradcomp.activations.plan import ActivationPlan, PlanRow
from gradcomp.activations.trace import BETWEEN, Trace, trace
from gradcomp.activations.units import Unit, units
from gradcomp.codecs import Auto, Codec
from gradcomp.codecs import codec as as_codec
from gradcomp.errors import ActivationError, CodecError
from gradcomp.policy import Policy, as_policy

Rule = tuple[str | type, Codec | str | None]


def pack_model(
    model: Any,
    rules: Policy | Codec | str | Sequence[Rule] | Auto,
    batch_size: int = 32,
) -> PackedLayers:
    """Packs activations of the layers of a model that rules name, in place.

    Layers keep their classes, weights and names, and the model is saved and loaded as before;
    packing is not saved with it. What a layer keeps is as with `pack_activations`. Called again, it
    replaces what it did before.

    Args:
      model: a built Keras model or layer.
      rules: what each layer's codec is:
        - pairs (regular expression, codec | spec | None) or (class, ...), the first that fits
          decides: an expression that `re.search` finds in the layer's path ("block_1/dense"), a
          class of which the layer is, or one that it is in. A layer that none fits stays as it is.
        - a `Policy`, of which paths are those of layers, and numbers of elements those of one
          example of a layer's output; or a codec, for all layers.
        - `Auto(memory_limit=MiB)`: the codecs, cheapest first, that make what is kept for a batch
          of `batch_size` fit. `FP16` first, then 8 bits, then 4, or the `candidates` of `Auto` in
          their order; the layers that save most with it first.
      batch_size: for `Auto`; also what `plan()` shows if not told otherwise.
    Returns:
      the choice, whose `plan(batch_size)` prints as a table.
    Raises:
      CodecError: a rule or a codec can't be understood, or can't pack activations.
      ActivationError: the model isn't built; a rule's layer can't be packed, which is named; or
        the memory limit can't be met.

    Example:
      >>> packed = gc.pack_model(model, [(keras.layers.Conv2D, "quantize:bits=8"), ("head", None)])
      >>> print(packed.plan(batch_size=64))
    """
    if not isinstance(model, keras.layers.Layer):
        raise ActivationError(f"a Keras model or layer can be packed, not {type(model).__name__}")
    if not model.built:
        raise ActivationError(f"{model.name} is not built: build it, or call it on a batch, first")
    layers = units(model)
    uninstall(model)
    if isinstance(rules, Auto):
        chosen = choose(model, layers, rules, batch_size)
    elif isinstance(rules, Policy | Codec | str):
        chosen = _by_policy(model, layers, as_policy(rules), batch_size)
    else:
        chosen = _by_rules(layers, [_rule(rule) for rule in rules])
    for unit in layers:
        made = chosen[unit.path]
        if made is not None:
            install(unit.layer, check_codec(made), alone=True)
            # On one GPU Keras would choose XLA by itself.
            unit.layer.supports_jit = unit.layer.supports_jit and runs_in_xla(made)
    return PackedLayers(model, layers, chosen, batch_size)


class PackedLayers:
    """What `pack_model` chose.

    Attributes:
      model: the model.
      codecs: the codec of each layer by its path; None where it packs nothing.
    """

    def __init__(
        self, model: Any, layers: Sequence[Unit], codecs: dict[str, Codec | None], batch_size: int
    ) -> None:
        self.model = model
        self.codecs = codecs
        self._layers = layers
        self._batch_size = batch_size

    def plan(self, batch_size: int | None = None) -> ActivationPlan:
        """What each layer keeps for backward, before and after; `print` it to see the table.

        The training call is traced twice, not run.

        Args:
          batch_size: examples; by default as `pack_model` was told.
        """
        size = self._batch_size if batch_size is None else batch_size
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ActivationError(f"batch_size must be an integer of at least 1, got {size!r}")
        with plain():
            before = trace(self.model, self._layers, size).bytes
        after = trace(self.model, self._layers, size).bytes
        rows = [
            PlanRow(
                unit.path,
                type(unit.layer).__name__,
                self.codecs[unit.path],
                before.get(unit.path, 0),
                after.get(unit.path, 0),
            )
            for unit in self._layers
        ]
        rows.append(PlanRow(BETWEEN, "", None, before.get(BETWEEN, 0), after.get(BETWEEN, 0)))
        return ActivationPlan(tuple(row for row in rows if row.before or row.after), size)


def _rule(rule: Any) -> tuple[re.Pattern[str] | type, Codec | None]:
    try:
        pattern, chosen = rule
        return (pattern if isinstance(pattern, type) else re.compile(pattern)), as_codec(chosen)
    except (TypeError, ValueError, re.error) as error:
        raise CodecError(
            f"rule {rule!r} is not a pair (regular expression or class, codec): {error}"
        ) from None


def _by_rules(
    layers: Sequence[Unit], rules: Sequence[tuple[re.Pattern[str] | type, Codec | None]]
) -> dict[str, Codec | None]:
    def choose(unit: Unit) -> Codec | None:
        for pattern, chosen in rules:
            if unit.isa(pattern) if isinstance(pattern, type) else pattern.search(unit.path):
                return chosen
        return None

    return {unit.path: choose(unit) for unit in layers}


def _by_policy(
    model: Any, layers: Sequence[Unit], policy: Policy, batch_size: int
) -> dict[str, Codec | None]:
    try:
        with plain():
            outputs = trace(model, layers, batch_size).outputs
    except ActivationError:  # shapes aren't known, so no layer is too small
        outputs = Trace().outputs
    chosen = {}
    for unit in layers:
        shape, dtype = outputs.get(unit.path, ((1, policy.min_numel), unit.layer.compute_dtype))
        chosen[unit.path] = policy.codec_for(unit.path, (1, *shape[1:]), dtype)
    return chosen
