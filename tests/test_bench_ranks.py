"""Where a benchmark's ranks run, and what is read of what they print."""

import pytest
from rich.console import Console

from bench import ranks
from bench.hosts import HostsUnavailableError


def test_what_a_rank_tells_is_found_among_other_lines(capsys) -> None:
    ranks.tell({"times": [1.5]})
    assert ranks.told(f"a warning\n{capsys.readouterr().out}another\n") == {"times": [1.5]}


def test_without_hosts_ranks_run_on_loopback_and_the_remedy_is_told(monkeypatch) -> None:
    def none(count, *, rate):
        raise HostsUnavailableError("no network namespaces here")

    monkeypatch.setattr(ranks, "Hosts", none)
    console = Console(width=200, record=True)
    program = [
        "python",
        "-c",
        "import os, json; from bench import ranks\n"
        "if os.environ['HOROVOD_RANK'] == '0': ranks.tell(ranks.has_a_host())",
    ]
    found, link = ranks.on_hosts_or_loopback(program, 2, "1gbit", 60, console)
    assert (found, link) == (False, ranks.LOOPBACK)
    told = console.export_text()
    assert "no network namespaces here" in told
    assert "apt-get install iproute2" in told


def test_a_rank_that_fails_is_told(monkeypatch) -> None:
    console = Console(record=True)
    program = ["python", "-c", "raise SystemExit('what went wrong')"]
    with pytest.raises(RuntimeError, match="what went wrong"):
        ranks.on_loopback(program, 1, 60, console, HostsUnavailableError("none"))


def test_the_interface_is_that_of_the_host(monkeypatch) -> None:
    monkeypatch.delenv("HOROVOD_GLOO_IFACE", raising=False)
    assert not ranks.has_a_host()
    assert ranks.interface_bytes() >= 0
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", ranks.INTERFACE)
    assert ranks.has_a_host()
