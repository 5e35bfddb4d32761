"""Runs all benchmarks in their small size, one after the other, and says which missed a target.

Each is also a program of its own with a full size: see `python -m bench.NAME --help`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence

PROGRAMS = ("kernels", "allreduce", "overlap", "train")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 if every benchmark ended with 0."""
    argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(argv)
    ended = []
    for number, name in enumerate(PROGRAMS, 1):
        print(f"\n[{number}/{len(PROGRAMS)}] python -m bench.{name} --quick", flush=True)
        begun = time.monotonic()
        done = subprocess.run([sys.executable, "-m", f"bench.{name}", "--quick"], check=False)
        ended.append((name, done.returncode, time.monotonic() - begun))
    print()
    for name, status, seconds in ended:
        verdict = "done" if status == 0 else f"ended with {status}: not every target was reached"
        print(f"bench.{name}: {verdict} ({seconds:.0f} s)")
    return max(status for _, status, _ in ended)


if __name__ == "__main__":
    sys.exit(main())
