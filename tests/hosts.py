"""Local ranks that pretend to be on several hosts, for hierarchical exchanges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradcomp.collective import Collective, LocalCollective, LocalRank, _Board, alone
from gradcomp.hierarchy import Levels, Ranks


def groups(sizes: Sequence[int]) -> list[Ranks]:
    """(2, 1) → [(0, 1), (2,)]."""
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [tuple(range(s, s + size)) for s, size in zip(starts, sizes, strict=True)]


def run_on_hosts(sizes: Sequence[int], work: Callable[[Any], Any]) -> list[Any]:
    """`LocalCollective.run` on hosts of so many ranks; each rank has `levels` and `host_sizes`."""
    hosts = groups(sizes)
    boards = {h: _Board(len(h)) for h in (*hosts, tuple(h[0] for h in hosts))}

    def on_host(rank: LocalRank) -> Any:
        def collective_of(ranks: Ranks) -> Collective:
            board = boards[ranks]
            return LocalRank(ranks.index(rank.rank), board) if len(ranks) > 1 else alone()

        rank.levels = Levels.of(rank.rank, hosts, collective_of)
        rank.host_sizes = tuple(sizes)
        try:
            return work(rank)
        except BaseException:
            for board in boards.values():
                board.barrier.abort()
            raise

    return LocalCollective(sum(sizes)).run(on_host)
