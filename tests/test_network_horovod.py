"""Several hosts: ranks in network namespaces, each behind a link of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import PROGRAM, collect, environment, values
from scenarios_network import COMPARED, EXCHANGES, ROUTES

from bench.hosts import Hosts, HostsUnavailableError

RANKS = 3


@pytest.fixture(scope="module")
def hosts():
    try:
        with Hosts(RANKS, rate="1gbit") as made:
            yield made
    except HostsUnavailableError as error:
        pytest.skip(str(error))
    assert left_behind(os.getpid()) == []


def left_behind(pid: int) -> list[str]:
    """Namespaces and files of the hosts that process `pid` made; other tests make theirs."""
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    mine = re.compile(rf"gradcomp{pid}[hs]")
    files = [path.name for path in Path("/etc/netns").glob("*")]
    return [name for name in names.stdout.split() + files if mine.match(name)]


@pytest.fixture(scope="module")
def outcomes(hosts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    # Idle ranks exchange control messages every cycle: fewer cycles leave fewer of them.
    env = {**environment(), "HOROVOD_CYCLE_TIME": "20"}
    hosts.run([sys.executable, *PROGRAM, "scenarios_network", str(folder)], env=env)
    return collect(folder, RANKS)


def test_weights_stay_equal_between_hosts(outcomes) -> None:
    values(outcomes, "training", RANKS)


@pytest.mark.parametrize("spec", ROUTES)
def test_counted_bytes_are_those_of_each_hosts_interface_within_5_percent(outcomes, spec) -> None:
    for rank in values(outcomes, spec, RANKS):
        assert rank["payload"] > 2**20
        assert rank["counted"] > EXCHANGES * rank["payload"]
        assert rank["interface"] == pytest.approx(rank["counted"], rel=0.05)


def test_all_reduces_are_compared(outcomes) -> None:
    """Bytes are those of the plan, or of Horovod's ring over all 300 tensors of 4,096."""
    told, *others = values(outcomes, "all_reduces_are_compared", RANKS)
    assert all(other["sent"] == told["sent"] for other in others)
    assert list(told["times"]) == list(told["sent"]) == COMPARED
    assert 0.5e8 < told["goodput"] < 1.3e8
    ring = 2 * (RANKS - 1) / RANKS * 300 * 4096 * 4
    assert told["sent"]["Horovod float32"] == pytest.approx(ring, rel=0.3)
    assert told["sent"]["none"] == pytest.approx(told["planned"]["none"], rel=0.05)
    assert told["planned"]["none"] == pytest.approx(ring, rel=0.01)
    assert told["planned"]["none"] / told["planned"]["4-bit"] > 7
    assert told["sent"]["none"] / told["sent"]["4-bit"] > 5
    assert told["kernels"]["4-bit"] > 0


def test_a_failed_rank_ends_the_others_and_says_what_it_wrote(hosts) -> None:
    program = "import os, sys, time; rank = os.environ['HOROVOD_RANK']"
    program += "; sys.exit('no disk') if rank == '1' else time.sleep(60)"
    with pytest.raises(RuntimeError, match=r"rank 1 ended with 1; it wrote at last:\nno disk"):
        hosts.run([sys.executable, "-c", program])
    with pytest.raises(RuntimeError, match="rank 0 did not end within 1 s"):
        hosts.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=1)


def test_nothing_is_left_after_a_failure(hosts) -> None:
    """Made in a process of its own: names of namespaces are a process's."""
    program = "from bench.hosts import Hosts; hosts = Hosts(2, rate='nonsense').__enter__()"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[1],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "nonsense" in process.communicate()[1]
    assert left_behind(process.pid) == []


def test_the_number_of_hosts_is_checked() -> None:
    with pytest.raises(ValueError, match="count must be from 1 to 250, got 0"):
        Hosts(0)


def test_auto_compresses_on_a_slow_link_and_follows_one_that_slows_down(hosts, tmp_path) -> None:
    command = [sys.executable, *PROGRAM, "scenarios_auto_network", str(tmp_path)]
    hosts.run(command, env=environment())
    told = values(collect(tmp_path, RANKS), "it_follows_the_link", RANKS)
    for run in (0, 1):
        assert len({rank[run]["chosen"] for rank in told}) == 1
        for rank in (rank[run] for rank in told):
            # A link lets half a megabyte pass at any rate before it holds to its own.
            assert 2e6 < rank["bandwidth"] < 6e7
            assert rank["planned"] < rank["uncompressed"] / 3
            # Horovod's control messages, and a look at the link, are sent too.
            assert rank["interface"] < rank["uncompressed"] / 1.5
