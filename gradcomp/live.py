"""What lives in this process: its reducers, and the engine that they belong to.

Saved state finds its reducer by a key: the reducer's name, which counts up in the order in which
the program makes reducers, and is thus the same when the program runs again.
"""

from __future__ import annotations

import itertools
import re
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gradcomp.collective import Collective, alone

_reducers: dict[str, weakref.ref[Any]] = {}
_counts: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)
# Whether reducers are made when they are first used, rather than with their optimizer. An engine
# says so where workers come and go: one that comes must not wait for the others before they know.
late = False

Reach = Callable[[tuple[int, ...] | None], Collective | None]
_world: Reach | None = None

# Those of a strategy, where its reducers live; they need no launcher.
workers: Collective | None = None

# What the program's own training loop said last; None where there is none.
epoch: int | None = None


@dataclass(frozen=True)
class Bypass:
    """An optimizer whose gradients gradcomp was asked to compress and did not get.

    Attributes:
      variables: (path, shape, dtype) of each.
      given: indices of those that had a gradient.
      alone: whether there is nobody to exchange anything with.
    """

    name: str
    engine: str
    variables: tuple[tuple[str, tuple[int, ...], str], ...]
    given: frozenset[int]
    alone: bool
    why: str


_bypassed: weakref.WeakKeyDictionary[Any, Bypass] = weakref.WeakKeyDictionary()

# State by the family of reducers that do not live yet, each called with a reducer when it does.
waiting: dict[str, Callable[[Any], None]] = {}


def register(reducer: Any, name: str) -> None:
    """Makes a new reducer known, and gives it what waits for it."""
    nth = next(_counts[name])
    key = f"{name}#{nth}" if nth else name
    _reducers[key] = weakref.ref(reducer, lambda _: _reducers.pop(key, None))
    found = family(key)
    if found in waiting:
        waiting[found](reducer)
        if found == key:
            del waiting[found]


def family(key: str) -> str:
    """The key without a replica's number: replicas share what any number of them has saved."""
    return re.sub(r"\.replica\d+$", "", key)


def reducers() -> dict[str, Any]:
    """The reducers that live, by key, oldest first."""
    found = {key: reference() for key, reference in list(_reducers.items())}
    return {key: reducer for key, reducer in found.items() if reducer is not None}


def bypass(optimizer: Any, told: Bypass | None) -> None:
    """Notes what the optimizer's last traced step left out; None if it left nothing out."""
    if told is None:
        _bypassed.pop(optimizer, None)
    else:
        _bypassed[optimizer] = told


def bypassed() -> Iterable[Bypass]:
    """Of the optimizers that live."""
    return list(_bypassed.values())


def forget() -> None:
    """Lets keys be counted anew: the reducers that live belong to ranks that exchange no more."""
    if waiting:
        warnings.warn(
            f"what was restored for {sorted(waiting)} is lost: nothing had used it when workers "
            "came or went",
            stacklevel=2,
        )
    waiting.clear()
    _reducers.clear()
    _counts.clear()


def set_world(make: Reach) -> None:
    """Tells how to reach the given ranks of the job, or all; None where the engine does not run."""
    global _world
    _world = make


def running(ranks: tuple[int, ...] | None = None) -> Collective | None:
    """All ranks of the job, or None where no engine runs.

    Args:
      ranks: only these, which are a process set; this rank alone where it is none of them.
    """
    return workers or launched(ranks)


def launched(ranks: tuple[int, ...] | None = None) -> Collective | None:
    """As `running`, of an engine whose ranks a launcher started, outside of any strategy."""
    return None if _world is None else _world(ranks)


def world() -> Collective:
    """All ranks of the job; one rank where no engine runs."""
    return running() or alone()
