"""Shows that gradients are exchanged while backward still runs, and what that saves.

Hosts on shaped links (network namespaces, which need root) train a deep network of equal layers. A
step whose buckets may leave as soon as their gradients exist is compared with one that waits for
the last gradient first; both must give the same bits. results/overlap.json is a Chrome trace of one
step of each (open it in chrome://tracing or Perfetto), results/overlap.png its picture.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.hosts import HostsUnavailableError
from bench.overlap.timeline import (
    BARRIER,
    OVERLAPPED,
    Span,
    ended_early,
    spans,
    write_picture,
    write_trace,
)
from bench.ranks import ENVIRONMENT, LINKS, NEEDS, hosts, told

CODECS = ("none", "fp16", "quantize:bits=8", "quantize:bits=4")
FULL = {"width": 1024, "layers": 12, "batch": 512}
QUICK = {"width": 512, "layers": 6, "batch": 512}
_TIMEOUT = 300.0
# A layer's products must not hold up the clock's ops.
_ENVIRONMENT = {**ENVIRONMENT, "TF_NUM_INTEROP_THREADS": "4"}


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 if with every codec buckets were reduced while backward ran."""
    arguments = _parse(argv)
    console = Console(highlight=False)
    size = QUICK if arguments.quick else FULL
    codecs = CODECS[::2] if arguments.quick else CODECS
    found: dict[str, dict[str, Any]] = {}
    for codec in codecs:
        console.print(f"{codec}, {arguments.ranks} hosts, {arguments.link} ...")
        try:
            found[codec] = _run(size, codec, arguments)
        except (HostsUnavailableError, RuntimeError) as error:
            needs = f". {NEEDS}." if isinstance(error, HostsUnavailableError) else ""
            console.print(f"{error}{needs}", markup=False, soft_wrap=True)
            return 1
    console.print(table(found, arguments.link, arguments.ranks, size))
    steps = timelines(found)
    arguments.out.mkdir(parents=True, exist_ok=True)
    trace, picture = arguments.out / "overlap.json", arguments.out / "overlap.png"
    write_trace(steps, trace)
    write_picture(steps, picture)
    lines = arguments.out / "overlap.jsonl"
    lines.write_text("".join(json.dumps({"codec": c, **t}) + "\n" for c, t in found.items()))
    console.print(f"Wrote {trace}, {picture} and {lines}.", soft_wrap=True)
    late = [codec for codec, one in found.items() if not ended_early(one[OVERLAPPED]["step"])]
    if late:
        console.print(f"No bucket was reduced before backward ended: {', '.join(late)}.")
    return 1 if late else 0


def table(found: dict[str, dict[str, Any]], link: str, ranks: int, size: dict[str, int]) -> Table:
    """Both kinds of steps by codec."""
    title = f"{size['layers']} layers of {size['width']}², {ranks} hosts, {link}"
    result = Table(title=title, caption="Median step, the slower rank's; in turn, same run.")
    for heading in ("codec", OVERLAPPED, BARRIER, "of it", "reduced while\nbackward ran"):
        result.add_column(heading, justify="left" if heading == "codec" else "right")
    for codec, one in found.items():
        fast, slow = (median(one[kind]["times"]) for kind in (OVERLAPPED, BARRIER))
        early = ended_early(one[OVERLAPPED]["step"])
        result.add_row(
            codec,
            f"{1e3 * fast:.0f} ms",
            f"{1e3 * slow:.0f} ms",
            f"{fast / slow:.2f} ×",
            f"{early} of {size['layers']} buckets",
        )
    return result


def timelines(found: dict[str, dict[str, Any]]) -> dict[str, list[Span]]:
    """The spans of each codec's two steps, by title."""
    return {
        f"{codec}, {kind}": spans(one[kind]["step"], kind == BARRIER)
        for codec, one in found.items()
        for kind in (OVERLAPPED, BARRIER)
    }


def _run(size: dict[str, int], codec: str, arguments: argparse.Namespace) -> dict[str, Any]:
    settings = json.dumps({**size, "codec": codec, "rounds": arguments.rounds})
    program = [sys.executable, "-m", "bench.overlap.worker", settings]
    with hosts(arguments.ranks, arguments.link) as all_hosts:
        outputs = all_hosts.run(program, env=_ENVIRONMENT, timeout=_TIMEOUT)
    found: dict[str, Any] = told(outputs[0])
    return found


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.overlap",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a smaller network, fewer codecs")
    parser.add_argument("--ranks", type=int, default=2, help="hosts, default 2")
    parser.add_argument("--link", choices=LINKS, default="1gbit", help="default: 1gbit")
    parser.add_argument("--rounds", type=int, default=7, help="steps of each kind, default 7")
    parser.add_argument("--out", type=Path, default=Path("results"), help="default: results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
