"""Folders of generations."""

import os

import pytest

from gradcomp.generations import Member, complete, discard, list_members


def make(folder, *members: Member, suffix: str = "") -> None:
    for member in members:
        (folder / f"{member.name}{suffix}").write_bytes(b"")


def of(generation: int, world_size: int) -> list[Member]:
    return [Member(generation, rank, world_size) for rank in range(world_size)]


def test_names_come_back(tmp_path) -> None:
    members = [*of(1, 2), *of(12, 2), *of(123_456_789, 11)]
    make(tmp_path, *members)
    make(tmp_path, Member(13, 0, 2), suffix=".tmp")
    (tmp_path / "notes.txt").write_text("mine")
    assert sorted(list_members(tmp_path)) == sorted(members)
    assert list_members(tmp_path / "absent") == []


def test_only_whole_generations_are_complete() -> None:
    members = [*of(1, 2), *of(2, 3)[:2], *of(3, 4), *of(4, 2)[1:], *of(4, 3)[:1]]
    assert complete(members) == [3, 1]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_old_file_is_deleted_by_exactly_one_rank(tmp_path, ranks) -> None:
    make(tmp_path, *of(1, 4), *of(2, 2), *of(3, 2)[:1], *of(4, ranks))
    make(tmp_path, *of(3, 4), suffix=".tmp")
    (tmp_path / "notes.txt").write_text("mine")
    before = len(os.listdir(tmp_path))
    for rank in range(ranks):
        discard(tmp_path, [2, 4], rank, ranks)
        assert len(os.listdir(tmp_path)) < before
        before = len(os.listdir(tmp_path))
    assert sorted(list_members(tmp_path)) == sorted([*of(2, 2), *of(4, ranks)])
    assert before == 2 + ranks + 1
