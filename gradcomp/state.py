"""`save_state` and `restore_state`: what all ranks keep, in one file a rank."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from gradcomp import live, residuals, variables
from gradcomp.archive import Archive, write_archive, write_atomically
from gradcomp.collective import Collective
from gradcomp.errors import StateError
from gradcomp.generations import Member, complete, discard, list_members
from gradcomp.reducer import Reducer
from gradcomp.residuals import Snapshot


class Contents(NamedTuple):
    """What a generation holds.

    Attributes:
      reducers: by key.
      waiting: state that was restored and whose reducers have not come to life since.
      variables: of the model and its optimizer; None where no model was given.
      step: the caller's count, for the caller.
    """

    reducers: Mapping[str, Reducer]
    waiting: Mapping[str, Snapshot]
    variables: list[Any] | None
    step: int


def save_state(path: str | Path, *, model: Any = None, step: int | None = None) -> None:
    """Saves what error feedback keeps, on all ranks: one file a rank in the folder `path`.

    All ranks call it at the same point. It covers every reducer of the process: optimizers, tapes,
    and the `FeedbackState`s of `allreduce`. Each call makes a generation; the last two are kept.
    A process that dies in the middle leaves the earlier generations as they were.

    Args:
      path: folder, made if it is missing. It may be local to each rank's host; then a restore needs
        the same ranks on the same hosts.
      model: a built Keras model whose weights, seeds and optimizer variables are saved along, so
        that they belong to the residuals even if the process dies now.
      step: count for the caller, which `restore_state` returns; by default the exchanges so far.

    Raises:
      StateError: a rank could not write its file, on all ranks and with the reason; the earlier
        generations are as they were.
    """
    found = None if model is None else variables.of_model(model)
    reducers = live.reducers()
    if step is None:
        step = max((int(reducer.step.numpy()) for reducer in reducers.values()), default=0)
    waiting = {family: w for family, w in live.waiting.items() if isinstance(w, _Waiting)}
    unused = {
        key: snapshot
        for restored in waiting.values()
        for key, snapshot in restored.own.items()
        if key not in reducers
    }
    contents = Contents(reducers, unused, found, step)
    lost = sorted(family for family, restored in waiting.items() if not restored.own)
    if lost:
        warnings.warn(
            f"what was restored for {lost} is not saved again: nothing has used it since, and "
            "the number of ranks has changed",
            stacklevel=2,
        )
    save_generation(Path(path), live.world(), contents)


def restore_state(path: str | Path, *, model: Any = None) -> int | None:
    """Restores the newest generation that every rank finds whole.

    All ranks call it at the same point, before the first step. Reducers that do not live yet, since
    their optimizer is not built or their tape was not used, get theirs when they do. With another
    number of ranks than saved, residuals are shared out so that what they add to the gradients to
    come stays the same; all files then have to be within reach of all ranks.

    Args:
      path: folder that was given to `save_state`.
      model: gets weights, seeds and optimizer variables; its optimizer is built if it is not.

    Returns:
      The `step` that was saved; None, with a warning, where nothing can be restored.

    Raises:
      StateError: what was saved belongs to other variables: their number or a shape differs.
    """
    live.waiting.clear()
    if model is not None and model.built:
        variables.of_model(model)  # a strategy's workers are known when its optimizer is built
    world = live.world()
    archives = open_newest(Path(path), world)
    if archives is None:
        return None
    some = next(iter(archives.values()))
    if model is not None:
        if some.metadata["variables"] is None:
            warnings.warn(
                f"{path} holds no weights, since save_state was called without model=; the model "
                "stays as it is",
                stacklevel=2,
            )
        else:
            saved = archives[world.rank % int(some.metadata["world_size"])]
            variables.restore(variables.of_model(model), saved)
    same_ranks = int(some.metadata["world_size"]) == world.size  # then each opened its own file
    families = {
        live.family(key) for archive in archives.values() for key in archive.metadata["reducers"]
    }
    reducers = live.reducers()
    for family in sorted(families):
        restored = _Waiting(snapshots(archives, family), some if same_ranks else None)
        found = [reducer for key, reducer in reducers.items() if live.family(key) == family]
        for reducer in found:
            restored(reducer)
        if not found:
            live.waiting[family] = restored
    for key in sorted(reducers):
        if live.family(key) not in families:
            warnings.warn(f"{path} holds nothing for {key}, which stays as it is", stacklevel=2)
    if not live.waiting:
        for archive in archives.values():
            archive.close()
    return int(some.metadata["step"])


@dataclass(frozen=True)
class _Waiting:
    """Restored state whose reducer does not live yet."""

    snapshots: dict[int, Snapshot]
    archive: Archive | None  # of this rank, where it opened no other

    def __call__(self, reducer: Reducer) -> None:
        residuals.restore_found(reducer, self.snapshots)

    @property
    def own(self) -> dict[str, Snapshot]:
        """By key what this rank saved itself; empty where the number of ranks was another."""
        mine = [s for s in self.snapshots.values() if s.archive is self.archive]
        return {snapshot.prefix.removesuffix("/"): snapshot for snapshot in mine}


def save_generation(folder: Path, collective: Collective, contents: Contents) -> int:
    """Writes this rank's file of a new generation; returns the generation's number."""
    # Also tells that all ranks are here, before anything is written.
    everyones = collective.all_gather_object(list_members(folder), name="gradcomp.save.list")
    members = set().union(*everyones)
    number = 1 + max((member.generation for member in members), default=0)
    member = Member(number, collective.rank, collective.size)
    file = folder / member.name
    failure = ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(file, lambda stream: _write(stream, member, contents))
    except Exception as error:  # whatever it is, the others wait for the verdict
        failure = f"{type(error).__name__}: {error}"
    failures = collective.all_gather_object(failure, name="gradcomp.save.verdict")
    if any(failures):
        file.unlink(missing_ok=True)
        told = "; ".join(f"on rank {r}: {text}" for r, text in enumerate(failures) if text)
        raise StateError(
            f"state was not saved in {folder}; earlier generations are as they were ({told})"
        )
    try:
        discard(folder, [number, *complete(members)[:1]], collective.rank, collective.size)
    except OSError as error:
        warnings.warn(f"old generations in {folder} can't be deleted: {error}", stacklevel=3)
    return number


def _write(stream: IO[bytes], member: Member, contents: Contents) -> None:
    described = {key: residuals.describe(reducer) for key, reducer in contents.reducers.items()}
    described |= {key: snapshot.description for key, snapshot in contents.waiting.items()}
    metadata = {
        **member._asdict(),
        "step": contents.step,
        "reducers": described,
        "variables": None if contents.variables is None else variables.describe(contents.variables),
    }

    def arrays() -> Iterator[tuple[str, np.ndarray]]:
        for key, reducer in contents.reducers.items():
            yield from residuals.arrays_of(reducer, f"{key}/")
        for snapshot in contents.waiting.values():
            yield from snapshot.arrays()
        yield from variables.arrays_of(contents.variables or ())

    write_archive(stream, metadata, arrays())


def open_newest(folder: Path, collective: Collective) -> dict[int, Archive] | None:
    """The files that this rank needs, by the rank that saved, of the newest usable generation.

    Where as many ranks saved as there are now, that is its own file, else all files. All ranks
    return files of the same generation, or all return None; each that is passed over is told.
    """
    everyones = collective.all_gather_object(list_members(folder), name="gradcomp.restore.list")
    members = set().union(*everyones)
    for number in sorted({member.generation for member in members}, reverse=True):
        generation = {member for member in members if member.generation == number}
        try:
            opened, failure = _open(folder, generation, collective), ""
        except StateError as error:
            opened, failure = {}, str(error)
        failures = collective.all_gather_object(failure, name=f"gradcomp.restore.{number}")
        if not any(failures):
            return opened
        for archive in opened.values():
            archive.close()
        told = "; ".join(f"rank {r}: {text}" for r, text in enumerate(failures) if text)
        warnings.warn(
            f"generation {number} in {folder} is not whole and is passed over ({told})",
            stacklevel=3,
        )
    warnings.warn(
        f"nothing to restore in {folder}: training begins with empty residuals", stacklevel=3
    )
    return None


def _open(folder: Path, generation: set[Member], collective: Collective) -> dict[int, Archive]:
    number, _, world_size = next(iter(generation))
    if any(member.world_size != world_size for member in generation):
        raise StateError("its files are of different numbers of ranks")
    same = world_size == collective.size
    opened: dict[int, Archive] = {}
    try:
        for rank in [collective.rank] if same else range(world_size):
            member = Member(number, rank, world_size)
            opened[rank] = Archive(folder / member.name, member.name)
            found = {what: opened[rank].metadata.get(what) for what in Member._fields}
            if found != member._asdict():
                raise StateError(f"{member.name} was renamed: it says that it is {found}")
            # Ranks share the work of reading all files: each is verified by one.
            if rank % collective.size == collective.rank:
                opened[rank].verify()
    except StateError:
        for archive in opened.values():
            archive.close()
        raise
    return opened


def snapshots(archives: Mapping[int, Archive], family: str) -> dict[int, Snapshot]:
    """The state of reducers by their ranks among those that exchanged."""
    found = [
        Snapshot(description, archive, f"{key}/")
        for archive in archives.values()
        for key, description in archive.metadata["reducers"].items()
        if live.family(key) == family
    ]
    return {int(snapshot.description["rank"]): snapshot for snapshot in found}
