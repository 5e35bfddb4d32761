"""A folder of generations: what was saved at one time, one file a rank.

Generations are numbered in the order of saving. A number is never used twice, so that files of a
save that was cut short are never taken for part of a later one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gradcomp.archive import sync_folder

_NAME = re.compile(r"generation-(\d{8,})\.rank-(\d+)-of-(\d+)\.npz(\.tmp)?")


class Member(NamedTuple):
    """One rank's file of a generation."""

    generation: int
    rank: int
    world_size: int

    @property
    def name(self) -> str:
        return f"generation-{self.generation:08d}.rank-{self.rank}-of-{self.world_size}.npz"


def list_members(folder: Path) -> list[Member]:
    """All files that were written to their end; none where there is no folder."""
    return [member for member, _, partial in _files(folder) if not partial]


def complete(members: Iterable[Member]) -> list[int]:
    """The generations of which every rank's file is there, newest first."""
    ranks: dict[tuple[int, int], set[int]] = {}
    for member in members:
        ranks.setdefault((member.generation, member.world_size), set()).add(member.rank)
    return sorted({g for (g, size), there in ranks.items() if len(there) == size}, reverse=True)


def discard(folder: Path, keep: Iterable[int], rank: int, world_size: int) -> None:
    """Deletes the rank's share of all files that belong to other generations than `keep`.

    Among `world_size` ranks that do so at once, every file is deleted by exactly one.
    """
    kept = set(keep)
    for member, file, partial in _files(folder):
        if member.rank % world_size == rank and (partial or member.generation not in kept):
            file.unlink(missing_ok=True)
    sync_folder(folder)


def _files(folder: Path) -> list[tuple[Member, Path, bool]]:
    found = []
    for file in sorted(folder.iterdir()) if folder.is_dir() else []:
        match = _NAME.fullmatch(file.name)
        if match:
            generation, rank, world_size, partial = match.groups()
            member = Member(int(generation), int(rank), int(world_size))
            found.append((member, file, partial is not None))
    return found
