"""What tests ask of `gc.report`, and of the line that names the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import gradcomp as gc
from gradcomp.reporting import ReportedExchange

Told = dict[str, tuple[str, str]]


def exchange_of(name: str) -> ReportedExchange:
    """The report's part about the reducer of this name."""
    (found,) = [e for e in gc.report().exchanges if e.name == name]
    return found


def told_of(optimizer: Any) -> Told:
    """(what happened, why) by the end of the variable's path."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return by_name(exchange_of(inner._reducer.name))


def by_name(exchange: ReportedExchange) -> Told:
    return {"/".join(v.path.split("/")[-2:]): (v.happened, v.why) for v in exchange.variables}


def lines_about_the_engine(work: Callable[[], Any]) -> list[str]:
    """What the logger is told while `work` runs as if it were the first in its process."""
    from gradcomp.distribute.engine import say_once

    lines: list[str] = []
    logger, handler = logging.getLogger("gradcomp"), logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    say_once.cache_clear()
    try:
        work()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    return lines
