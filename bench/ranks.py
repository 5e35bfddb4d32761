"""A benchmark's ranks: where they run, and what rank 0 tells.

On hosts with shaped links of their own, where namespaces can be made; else on the loopback
interface, where no link is the bottleneck.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.hosts import INTERFACE, Hosts, HostsUnavailableError

# As `tc` names rates.
LINKS = ("100mbit", "1gbit", "10gbit", "25gbit", "unshaped")
LOOPBACK = "loopback"
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "GRADCOMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "CUDA_VISIBLE_DEVICES": "-1",
    # On by default only where the CPU has instructions for neural networks. Where it is off, large
    # tensors are new memory in every step, and page faults hide what a method takes.
    "TF_ENABLE_ONEDNN_OPTS": "1",
}
NEEDS = (
    "Hosts with links of their own need root and the commands ip and tc (apt-get install iproute2)"
)
_MARK = "RESULT "  # begins the line in which rank 0 tells what it found


def tell(found: Any) -> None:
    """Prints what rank 0 found, for `told`."""
    print(_MARK + json.dumps(found), flush=True)


def told(output: str) -> Any:
    """What a rank has told in its output."""
    line = next(line for line in output.splitlines() if _MARK in line)
    return json.loads(line.split(_MARK, 1)[1])


def hosts(ranks: int, link: str) -> Hosts:
    """As many hosts, on links of that rate."""
    return Hosts(ranks, rate=None if link == "unshaped" else link)


def on_hosts_or_loopback(
    program: Sequence[str], ranks: int, link: str, timeout: float, console: Console
) -> tuple[Any, str]:
    """What rank 0 found, and the link between the ranks, which may be LOOPBACK.

    Raises:
      RuntimeError: a rank failed.
    """
    try:
        with hosts(ranks, link) as all_hosts:
            outputs = all_hosts.run(program, env=ENVIRONMENT, timeout=timeout)
        return told(outputs[0]), link
    except HostsUnavailableError as error:
        return on_loopback(program, ranks, timeout, console, error), LOOPBACK


def on_loopback(
    program: Sequence[str],
    ranks: int,
    timeout: float,
    console: Console,
    why: HostsUnavailableError,
) -> Any:
    """What rank 0 found on the loopback interface, which the console is told of.

    Raises:
      RuntimeError: a rank failed.
    """
    remedy = f"{why}. {NEEDS}; running on the loopback interface instead."
    console.print(remedy, markup=False, soft_wrap=True)
    launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", str(ranks), "--gloo"]
    done = subprocess.run(
        [*launcher, "--network-interfaces", "lo", *program],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"ranks failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return told(done.stdout)


def has_a_host() -> bool:
    """Whether this rank is alone on a host with a link of its own."""
    return os.environ.get("HOROVOD_GLOO_IFACE") == INTERFACE


def interface_bytes() -> int:
    """Sent by this host; on the loopback interface, by all ranks."""
    name = INTERFACE if has_a_host() else "lo"
    return int(Path(f"/sys/class/net/{name}/statistics/tx_bytes").read_text())
