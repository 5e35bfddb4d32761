"""Reducers that follow each other when the ranks of a running job change.

A reducer belongs to the ranks that it was made for. When they change all reducers retire, and each
optimizer, tape and `FeedbackState` makes its next one when it is used next. A line is what goes
through from the first to the last.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from gradcomp import live, residuals
from gradcomp.handover import hand_over
from gradcomp.reducer import Reducer
from gradcomp.residuals import Snapshot


class Kept(NamedTuple):
    """What a line kept at some time, and the reducer that kept it."""

    snapshot: Snapshot
    reducer: weakref.ref[Reducer]


class Line:
    """One reducer after the other; `waiting` is for the next while there is none in service."""

    def __init__(self) -> None:
        self.reducer: weakref.ref[Reducer] = lambda: None  # type: ignore[assignment]
        self.waiting: Kept | None = None


_lines: weakref.WeakKeyDictionary[Reducer, Line] = weakref.WeakKeyDictionary()


def succeed(reducer: Reducer, before: Reducer | None) -> None:
    """Makes a new reducer known, and gives it what `before` kept. All ranks call it together."""
    line = Line() if before is None else _lines[before]
    with tf.init_scope():  # it may happen while a step is traced
        if before is not None or live.late:
            hand_over(reducer, None if line.waiting is None else line.waiting.snapshot)
        if before is not None:
            reducer.count_on(before)
    line.waiting = None
    line.reducer = weakref.ref(reducer)
    _lines[reducer] = line


def take_all() -> dict[Line, Kept]:
    """What all lines of this process keep, in host memory."""
    kept = {}
    for line in set(_lines.values()):
        now = line.waiting or _take(line)
        if now is not None:
            kept[line] = now
    return kept


def put_back(kept: dict[Line, Kept]) -> None:
    """Returns all lines to what `take_all` found; empty ones that did not exist then."""
    for line in set(_lines.values()):
        reducer, then = line.reducer(), kept.get(line)
        if reducer is None or reducer.retired:
            line.waiting = then
        elif then is None:
            _empty(reducer)
        elif then.reducer() is reducer:
            residuals.restore(reducer, {reducer.rank: then.snapshot}, each_its_own=True)
        else:  # ranks have to share it out together, which they do when they make the next one
            reducer.retire()
            line.waiting = then


def retire_all() -> None:
    """Ends all reducers of this process, since other ranks exchange from now on."""
    for line in set(_lines.values()):
        reducer = line.reducer()
        if reducer is not None and not reducer.retired:
            line.waiting = _take(line)
            reducer.retire()
    live.forget()


def _take(line: Line) -> Kept | None:
    reducer = line.reducer()
    if reducer is None or reducer.retired:
        return None
    return Kept(residuals.take(reducer), weakref.ref(reducer))


def _empty(reducer: Reducer) -> None:
    everything = [*reducer.residuals.values(), *reducer.carried.values()]
    for variable in [*everything, *reducer.chunk_residuals.values(), reducer.step]:
        variable.assign(np.zeros(variable.shape, variable.dtype.as_numpy_dtype))
