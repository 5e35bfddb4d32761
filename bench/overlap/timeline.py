"""Steps as a Chrome trace, as a picture, and in numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # draws to files, needs no display

from matplotlib import pyplot

OVERLAPPED, BARRIER = "overlapped", "behind a barrier"


@dataclass(frozen=True)
class Span:
    """Something that a step did: seconds from the step's beginning."""

    lane: str
    name: str
    begin: float
    end: float


def spans(step: Mapping[str, Any], barrier: bool) -> list[Span]:
    """What a step did: forward, each layer's backward, and each bucket from gradient to mean.

    Args:
      step: seconds at which `forward` had ended, each gradient was `ready` and `reduced`.
      barrier: no exchange began before the last gradient was there.
    """
    ready, reduced = step["ready"], step["reduced"]
    result = [Span("forward, backward", "forward", 0.0, step["forward"])]
    begins = [step["forward"], *ready]
    for number, (begin, end) in enumerate(zip(begins, ready, strict=False)):
        result.append(Span("forward, backward", f"backward {number}", begin, max(begin, end)))
    for number, (begin, end) in enumerate(zip(ready, reduced, strict=True)):
        begin = max(ready) if barrier else begin
        result.append(Span(f"exchange {number}", f"bucket {number}", begin, max(begin, end)))
    return result


def ended_early(step: Mapping[str, Any]) -> int:
    """Buckets that were reduced before the last gradient existed."""
    return sum(t < max(step["ready"]) for t in step["reduced"])


def write_trace(steps: Mapping[str, list[Span]], path: Path) -> None:
    """For chrome://tracing or Perfetto: a process a step, a thread a lane, in microseconds."""
    events: list[dict[str, Any]] = []
    for process, (title, found) in enumerate(steps.items()):
        events.append(_named("process_name", title, process))
        lanes = list(dict.fromkeys(span.lane for span in found))
        events += [_named("thread_name", lane, process, i) for i, lane in enumerate(lanes)]
        events += [
            {
                "name": span.name,
                "ph": "X",
                "pid": process,
                "tid": lanes.index(span.lane),
                "ts": 1e6 * span.begin,
                "dur": 1e6 * (span.end - span.begin),
            }
            for span in found
        ]
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")


def _named(what: str, name: str, process: int, thread: int = 0) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def write_picture(steps: Mapping[str, list[Span]], path: Path) -> None:
    """A panel a step, a line a lane."""
    figure, panels = pyplot.subplots(
        len(steps), 1, figsize=(10, 3 * len(steps)), dpi=150, sharex=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for axes, (title, found) in zip(panels[:, 0], steps.items(), strict=True):
        lanes = list(dict.fromkeys(span.lane for span in found))
        for span in found:
            computes = span.lane == lanes[0]
            axes.barh(
                lanes.index(span.lane),
                1e3 * (span.end - span.begin),
                left=1e3 * span.begin,
                height=0.8,
                color="#8C8C8C" if computes else "#0072B2",
                edgecolor="white",
                linewidth=0.5,
            )
        axes.set_yticks(range(len(lanes)), lanes, fontsize=7)
        axes.invert_yaxis()
        axes.set_title(title, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1, 0].set_xlabel("milliseconds from the beginning of the step")
    figure.savefig(path)
    pyplot.close(figure)
