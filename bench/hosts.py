"""Several hosts on one machine: network namespaces, joined by links of a given speed.

Each host has an interface `eth0` and an address of its own, 10.77.0.1 and on, which exist in the
namespaces only. Links go to a bridge, as to a switch, and are shaped in both directions. It needs
root, and the commands `ip` and `tc`.

    with Hosts(3, rate="1gbit") as hosts:
        hosts.run([sys.executable, "train.py"])       # one Horovod rank a host
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

INTERFACE = "eth0"
_SWITCH = "10.77.0.254"
_NAMES = Path("/etc/netns")


class HostsUnavailableError(RuntimeError):
    """This machine does not let namespaces be made; says why."""


class Hosts:
    """`count` hosts, from entry to exit of a `with`. Whatever happens in it, nothing is left.

    Args:
      count: hosts, each with one rank.
      rate: of each link in each direction, as `tc` takes it; None leaves them unlimited.

    Raises:
      HostsUnavailableError: on entry, where namespaces can't be made here.
    """

    def __init__(self, count: int, *, rate: str | None = "1gbit") -> None:
        if not 1 <= count <= 250:
            raise ValueError(f"count must be from 1 to 250, got {count}")
        self.count = count
        self._rate = rate
        self._prefix = f"gradcomp{os.getpid()}"
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> Hosts:
        with contextlib.ExitStack() as cleanup:
            self._make(cleanup)
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cleanup.close()

    def name(self, host: int) -> str:
        """The namespace of a host, for `ip netns exec NAME ...`."""
        return f"{self._prefix}h{host}"

    def run(
        self,
        program: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float = 300,
    ) -> list[str]:
        """Runs a program as one Horovod rank on each host.

        Args:
          program: the command; every rank gets the same.
          env: environment variables beside this process's own and Horovod's.
          timeout: seconds after which all ranks are ended.

        Returns:
          What each rank wrote, standard output and error together.

        Raises:
          RuntimeError: a rank failed, or did not end in time; the others are ended.
        """
        with contextlib.ExitStack() as cleanup:
            folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
            port = cleanup.enter_context(self._rendezvous(folder))
            logs = [folder / f"rank{rank}.log" for rank in range(self.count)]
            ranks = []
            for rank, log in enumerate(logs):
                environment = {**os.environ, **(env or {}), **self._horovod(rank, port)}
                command = ["ip", "netns", "exec", self.name(rank), *program]
                ranks.append(cleanup.enter_context(_running(command, log, environment)))
            failure = _wait(ranks, time.monotonic() + timeout, timeout)
            told = [log.read_text(errors="replace") for log in logs]
        if failure is not None:
            rank, what = failure
            raise RuntimeError(f"rank {rank} {what}; it wrote at last:\n{told[rank][-4000:]}")
        return told

    def _make(self, cleanup: contextlib.ExitStack) -> None:
        switch = f"{self._prefix}s"
        self._add(switch, cleanup)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "addr", "add", f"{_SWITCH}/24", "dev", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for host in range(self.count):
            name, port = self.name(host), f"port{host}"
            self._add(name, cleanup)
            # Horovod asks for the address of the host's name in some places.
            (_NAMES / name).mkdir(parents=True)
            cleanup.callback(shutil.rmtree, _NAMES / name, ignore_errors=True)
            table = f"127.0.0.1 localhost\n{address(host)} {socket.gethostname()}\n"
            (_NAMES / name / "hosts").write_text(table)
            peer = ("type", "veth", "peer", "name", INTERFACE, "netns", name)
            _ip("-n", switch, "link", "add", port, *peer)
            _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
            _ip("-n", name, "addr", "add", f"{address(host)}/24", "dev", INTERFACE)
            _ip("-n", name, "link", "set", INTERFACE, "up")
            if self._rate is not None:
                shape = ("root", "tbf", "rate", self._rate, "burst", "512k", "latency", "100ms")
                _call("tc", "-n", switch, "qdisc", "add", "dev", port, *shape)
                _call("tc", "-n", name, "qdisc", "add", "dev", INTERFACE, *shape)

    def _add(self, name: str, cleanup: contextlib.ExitStack) -> None:
        try:
            _ip("netns", "add", name)
        except (OSError, RuntimeError) as error:
            raise HostsUnavailableError(f"no network namespaces here: {error}") from error
        cleanup.callback(_call, "ip", "netns", "delete", name)
        _ip("-n", name, "link", "set", "lo", "up")

    @contextlib.contextmanager
    def _rendezvous(self, folder: Path) -> Iterator[str]:
        """Horovod's server at which ranks find each other, on the switch; yields its port."""
        told = folder / "port"
        command = ["ip", "netns", "exec", f"{self._prefix}s", sys.executable, __file__]
        command += [str(self.count), str(told)]
        with _running(command, folder / "rendezvous.log", dict(os.environ)) as server:
            while not told.exists():
                if server.poll() is not None:
                    raise RuntimeError((folder / "rendezvous.log").read_text())
                time.sleep(0.05)
            yield told.read_text()

    def _horovod(self, rank: int, port: str) -> dict[str, str]:
        return {
            "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": str(self.count),
            "HOROVOD_LOCAL_RANK": "0",
            "HOROVOD_LOCAL_SIZE": "1",
            "HOROVOD_CROSS_RANK": str(rank),
            "HOROVOD_CROSS_SIZE": str(self.count),
            "HOROVOD_HOSTNAME": address(rank),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": INTERFACE,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": _SWITCH,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        }


def sent_bytes() -> int:
    """Bytes that have left the host on which this is called."""
    return int(Path(f"/sys/class/net/{INTERFACE}/statistics/tx_bytes").read_text())


def address(host: int) -> str:
    """Of a host, inside the namespaces."""
    return f"10.77.0.{host + 1}"


@contextlib.contextmanager
def _running(
    command: Sequence[str], log: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, all of which is ended at last."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(
    ranks: Sequence[subprocess.Popen[bytes]], deadline: float, timeout: float
) -> tuple[int, str] | None:
    """Waits for all; the first rank that fails, and what it did, or None."""
    while True:
        codes = [rank.poll() for rank in ranks]
        for rank, code in enumerate(codes):
            if code:
                return rank, f"ended with {code}"
        if None not in codes:
            return None
        if time.monotonic() > deadline:
            return codes.index(None), f"did not end within {timeout:.0f} s"
        time.sleep(0.05)


def _ip(*arguments: str) -> None:
    _call("ip", *arguments)


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command)}`: {done.stderr.strip()}")


def _serve(count: int, told: Path) -> None:
    from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments([HostInfo(address(h), 1) for h in range(count)], count))
    temporary = told.with_suffix(".new")
    temporary.write_text(str(port))
    temporary.replace(told)
    signal.pause()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), Path(sys.argv[2]))
