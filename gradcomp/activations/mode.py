"""Whether a call packs, and what the first run of a call hands on to its second.

A run reads and writes notes: bits of masks, shapes of tensors. What the second run finds there it
need not compute, and can't compute otherwise: rounded inputs would set other bits near a kink.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record

from gradcomp.errors import ActivationError
from gradcomp.xla import for_xla


@dataclass(frozen=True)
class Notes:
    """What one run left for the next.

    Attributes:
      items: in the order in which layers need them.
      made: False under XLA, where the next run makes them itself.
    """

    items: list[Any] = field(default_factory=list)
    made: bool = True


@dataclass(frozen=True)
class _Run:
    """A run that is going on.

    Attributes:
      graph: in which it began. What is in the body of a loop in it can't be had outside.
      writes: notes for a later run.
      reads: what is left of the notes of an earlier one.
    """

    graph: Any
    writes: list[Any] | None = None
    reads: list[Any] | None = None


class _State(threading.local):
    off = False
    run: _Run | None = None


_state = _State()


def packing() -> bool:
    """Whether there is any use in packing: a backward pass may come, and nobody recomputes."""
    return not _state.off and (not tf.executing_eagerly() or bool(record.could_possibly_record()))


def repeated() -> bool:
    """Whether this is a first run, that keeps nothing for backward but its notes."""
    run = _run()
    return run is not None and run.writes is not None


def formulas_apply() -> bool:
    """Whether layers are to be computed by their formulas: to pack, or to make notes."""
    return packing() or repeated()


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """Where layers compute as if they had never been told to pack."""
    with _set(off=True, run=None):
        yield


@contextlib.contextmanager
def not_packing() -> Iterator[None]:
    """Where what is computed is of no interest to backward: it keeps and records nothing."""
    with plain(), record.stop_recording():
        yield


@contextlib.contextmanager
def first_run() -> Iterator[Notes]:
    """A run that will be repeated: it keeps and records nothing but the notes that it makes."""
    # XLA draws fast, and has no kernels to pack bits.
    notes, outer = Notes(made=not for_xla()), _run()
    run = _Run(_graph(), notes.items, outer.reads if outer else None)
    with _set(off=True, run=run if notes.made else None), record.stop_recording():
        yield notes


@contextlib.contextmanager
def second_run(notes: Notes) -> Iterator[None]:
    """A run that packs, and reads the notes of the first.

    Raises:
      ActivationError: it asked for other notes than the first made.
    """
    reads = list(notes.items)
    run = _Run(_graph(), None, reads) if notes.made else None
    with _set(off=_state.off, run=run):
        yield
    if reads:
        raise _differs()


def noted(make: Callable[[], Any]) -> Any:
    """What the first run made here, in its second run; else what `make` makes."""
    run = _run()
    if run is None or run.reads is None:
        with not_packing():
            note = make()
    elif run.reads:
        note = run.reads.pop(0)
    else:
        raise _differs()
    if run is not None and run.writes is not None:
        run.writes.append(note)
    return note


def _differs() -> ActivationError:
    return ActivationError(
        "a call did something else when it was run again in backward: other layers ran, or as "
        "often. Let its Python not depend on what changes from call to call"
    )


def _run() -> _Run | None:
    run = _state.run
    return run if run is not None and run.graph is _graph() else None


def _graph() -> Any:
    """The graph that is being built; None in eager mode."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


@contextlib.contextmanager
def _set(off: bool, run: _Run | None) -> Iterator[None]:
    before = _state.off, _state.run
    _state.off, _state.run = off, run
    try:
        yield
    finally:
        _state.off, _state.run = before
