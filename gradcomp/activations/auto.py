"""Chooses codecs for activations, cheapest first, until what is kept fits into memory."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from gradcomp.activations.install import install, uninstall
from gradcomp.activations.mode import plain
from gradcomp.activations.pack import check_codec
from gradcomp.activations.trace import BETWEEN, trace
from gradcomp.activations.units import Unit
from gradcomp.codecs import FP16, Auto, Codec, Quantize
from gradcomp.codecs.auto import relative_error
from gradcomp.errors import ActivationError

_CHEAPEST_FIRST = (FP16(), Quantize(bits=8), Quantize(bits=4))
_MIB = 2**20


def choose(
    model: Any, layers: Sequence[Unit], auto: Auto, batch_size: int
) -> dict[str, Codec | None]:
    """The codec of each layer, by its path.

    Raises:
      ActivationError: `auto` has no memory limit, or it can't be met.
    """
    if auto.memory_limit is None:
        raise ActivationError(
            "gc.Auto chooses for activations by memory: give it a memory_limit in MiB"
        )
    given = [c for c in auto.candidates if isinstance(c, Codec)] or list(_CHEAPEST_FIRST)
    allowed = math.inf if auto.max_error is None else auto.max_error
    candidates = [check_codec(c) for c in given if relative_error(c) <= allowed]
    with plain():
        before = trace(model, layers, batch_size).bytes

    @functools.cache
    def after(candidate: Codec) -> dict[str, int]:
        return _with(model, layers, dict.fromkeys(paths, candidate), batch_size)

    paths = [unit.path for unit in layers]
    limit = aim = auto.memory_limit * _MIB
    while True:
        chosen, least = _cheapest(paths, before, candidates, after, aim)
        if least > aim:
            break
        # A tensor of two layers with different codecs is kept twice, which no layer alone shows.
        really = sum(_with(model, layers, chosen, batch_size).values())
        if really <= limit:
            return chosen
        aim -= really - limit
    least += limit - aim
    between = before.get(BETWEEN, 0) / _MIB
    raise ActivationError(
        f"{model.name} keeps at least {least / _MIB:,.1f} MiB for backward of a batch of "
        f"{batch_size} ({between:,.1f} of it between layers), more than memory_limit="
        f"{auto.memory_limit}: give a smaller batch, or pack_activations(..., recompute=True)"
    )


def _cheapest(
    paths: Sequence[str],
    before: dict[str, int],
    candidates: Sequence[Codec],
    after: Callable[[Codec], dict[str, int]],
    limit: float,
) -> tuple[dict[str, Codec | None], int]:
    """The first codecs with which bytes fit, those that save most first; and the bytes."""
    kept = dict(before)
    chosen: dict[str, Codec | None] = dict.fromkeys(paths)
    for candidate in candidates:
        if sum(kept.values()) <= limit:
            break
        packed = after(candidate)
        # What lies between layers may follow from what they keep.
        better = [path for path in paths if packed.get(path, 0) < kept.get(path, 0)]
        better.sort(key=lambda path: packed.get(path, 0) - kept[path])
        for path in better:
            if sum(kept.values()) <= limit:
                break
            chosen[path], kept[path] = candidate, packed.get(path, 0)
    return chosen, sum(kept.values())


def _with(
    model: Any, layers: Sequence[Unit], chosen: dict[str, Codec | None], batch_size: int
) -> dict[str, int]:
    """What each layer keeps with these codecs; none has one afterwards."""
    for unit in layers:
        codec = chosen[unit.path]
        if codec is not None:
            install(unit.layer, codec, alone=True)
    try:
        return trace(model, layers, batch_size).bytes
    finally:
        uninstall(model)
