"""save_state and restore_state on ranks that are threads, and in a process alone."""

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from invariants import TwoPhaseQuantize, make_plan, tensors_of

import gradcomp as gc
from gradcomp import live, residuals, state
from gradcomp.collective import LocalCollective, LocalRank
from gradcomp.generations import list_members
from gradcomp.reducer import Reducer

pytestmark = pytest.mark.filterwarnings("ignore:there is one process only")

CODEC = TwoPhaseQuantize(bits=4, block_size=32)


def trained(rank: LocalRank, steps: int = 2) -> Reducer:
    reducer = Reducer(make_plan(CODEC, rank.size), rank, name="test")
    for step in range(steps):
        reducer.reduce(tensors_of(rank.rank, step))
    return reducer


def save(folder: Path, rank: LocalRank, reducer: Reducer, step: int = 0) -> int:
    return state.save_generation(folder, rank, state.Contents({"r": reducer}, {}, None, step))


def restore(folder: Path, rank: LocalRank, reducer: Reducer) -> int | None:
    archives = state.open_newest(folder, rank)
    if archives is None:
        return None
    residuals.restore(reducer, state.snapshots(archives, "r"))
    return int(next(iter(archives.values())).metadata["step"])


def bits(reducer: Reducer) -> list[bytes]:
    kept = [reducer.step, *reducer.residuals.values(), *reducer.chunk_residuals.values()]
    return [variable.numpy().tobytes() for variable in kept]


def run(size: int, work: Callable[[LocalRank], Any]) -> list[Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = LocalCollective(size).run(work)
    said[:] = [str(warning.message) for warning in caught]
    return results


said: list[str] = []


def saved_twice(folder: Path, size: int = 2) -> list[tuple[list[bytes], list[bytes]]]:
    """Generations 1 and 2, of steps 10 and 20; what each rank had in either."""

    def work(rank: LocalRank) -> tuple[list[bytes], list[bytes]]:
        reducer = trained(rank)
        assert save(folder, rank, reducer, 10) == 1
        first = bits(reducer)
        reducer.reduce(tensors_of(rank.rank, 7))
        assert save(folder, rank, reducer, 20) == 2
        return first, bits(reducer)

    return run(size, work)


def restored(folder: Path, size: int = 2) -> list[tuple[int | None, list[bytes]]]:
    def work(rank: LocalRank) -> tuple[int | None, list[bytes]]:
        reducer = trained(rank, steps=0)
        return restore(folder, rank, reducer), bits(reducer)

    return run(size, work)


def test_the_newest_generation_comes_back(tmp_path) -> None:
    kept = saved_twice(tmp_path)
    assert any(np.frombuffer(b, np.float32).any() for b in kept[0][1][-1:])
    assert restored(tmp_path) == [(20, newest) for _, newest in kept]
    assert said == []


def test_the_last_two_generations_are_kept(tmp_path) -> None:
    def work(rank: LocalRank) -> None:
        reducer = trained(rank, steps=0)
        for number in range(1, 6):
            save(tmp_path, rank, reducer)
            kept = {member.generation for member in list_members(tmp_path)}
            assert {number} <= kept
            rank.all_gather_object(None, name=f"looked{number}")

    run(3, work)
    assert {member.generation for member in list_members(tmp_path)} == {4, 5}
    assert len(os.listdir(tmp_path)) == 6


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (truncate, "can't be read; it is damaged"),
        (flip, "damaged"),
        (Path.unlink, "does not exist"),
        (lambda file: file.rename(file.with_name(file.name + ".tmp")), "does not exist"),
        (lambda file: file.write_bytes(b""), "damaged"),
        (
            lambda file: file.write_bytes(
                file.with_name("generation-00000001.rank-1-of-2.npz").read_bytes()
            ),
            "renamed",
        ),
    ],
)
def test_damage_on_one_rank_takes_all_to_the_older_generation(tmp_path, damage, told) -> None:
    kept = saved_twice(tmp_path)
    damage(tmp_path / "generation-00000002.rank-1-of-2.npz")
    assert restored(tmp_path) == [(10, older) for older, _ in kept]
    assert len(said) == 2
    for message in said:
        assert "generation 2" in message
        assert "rank 1: generation-00000002.rank-1-of-2.npz" in message
        assert told in message


def test_nothing_usable_is_a_warning_and_training_goes_on(tmp_path) -> None:
    assert [step for step, _ in restored(tmp_path / "absent")] == [None, None]
    assert all("nothing to restore in" in message for message in said)
    saved_twice(tmp_path)
    for file in tmp_path.iterdir():
        truncate(file)
    assert [step for step, _ in restored(tmp_path)] == [None, None]
    assert sum("passed over" in message for message in said) == 4


def test_a_cut_save_is_not_taken_for_part_of_a_later_one(tmp_path) -> None:
    kept = saved_twice(tmp_path)
    os.remove(tmp_path / "generation-00000002.rank-1-of-2.npz")
    assert restored(tmp_path) == [(10, older) for older, _ in kept]

    def work(rank: LocalRank) -> int:
        return save(tmp_path, rank, trained(rank), 30)

    assert run(2, work) == [3, 3]
    assert {member.generation for member in list_members(tmp_path)} == {1, 3}
    assert [step for step, _ in restored(tmp_path)] == [30, 30]


def test_a_rank_that_cannot_write_fails_all_and_keeps_what_was(tmp_path, monkeypatch) -> None:
    kept = saved_twice(tmp_path)
    write = state.write_atomically

    def full(file, fill) -> None:
        if "rank-1" in file.name:
            raise OSError(28, "No space left on device")
        write(file, fill)

    monkeypatch.setattr(state, "write_atomically", full)

    def work(rank: LocalRank) -> str:
        with pytest.raises(gc.StateError) as error:
            save(tmp_path, rank, trained(rank))
        return str(error.value)

    first, second = run(2, work)
    assert first == second
    assert "earlier generations are as they were" in first
    assert "on rank 1: OSError: [Errno 28] No space left on device" in first
    assert len(os.listdir(tmp_path)) == 4
    assert restored(tmp_path) == [(20, newest) for _, newest in kept]


def test_old_files_that_cannot_be_deleted_are_a_warning(tmp_path, monkeypatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(state, "discard", refuse)
    run(2, lambda rank: save(tmp_path, rank, trained(rank)))
    assert said
    assert all("not yours" in message for message in said)
    assert [step for step, _ in restored(tmp_path)] == [0, 0]


@pytest.mark.parametrize(("old", "new"), [(2, 4), (4, 2), (3, 2), (2, 1)])
def test_another_number_of_ranks_reads_all_files(tmp_path, old, new) -> None:
    """What becomes of the values is in test_residuals."""
    saved_twice(tmp_path, old)
    assert [step for step, _ in restored(tmp_path, new)] == [20] * new
    assert said == []
    flip(tmp_path / f"generation-00000002.rank-{old - 1}-of-{old}.npz")
    assert [step for step, _ in restored(tmp_path, new)] == [10] * new


FULL = """
import resource, sys
import numpy as np
import gradcomp as gc
from gradcomp.collective import LocalCollective
from invariants import make_plan
from gradcomp.reducer import Reducer
reducer = LocalCollective(1).run(lambda r: Reducer(make_plan(None, 1), r, name="r"))[0]
reducer.carry(0, np.ones((7, 130), np.float32))
gc.save_state(sys.argv[1])
before = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))
try:
    gc.save_state(sys.argv[1])
except gc.StateError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, before)
reducer.carry(0, np.zeros((7, 130), np.float32))
print(gc.restore_state(sys.argv[1]), reducer.carried[0].numpy().max())
"""


def test_a_full_disk_is_told_and_the_generation_before_is_intact(tmp_path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parent.parent}"},
        capture_output=True,
        text=True,
        check=True,
    )
    told, after = ran.stdout.splitlines()
    assert "state was not saved" in told
    assert "File too large" in told
    assert after == "0 1.0"
    assert [member.generation for member in list_members(tmp_path)] == [1]


@pytest.fixture
def clean(monkeypatch):
    """No reducers of other tests."""
    monkeypatch.setattr(live, "_reducers", {})
    monkeypatch.setattr(live, "waiting", {})


def alone(name: str, value: float | None = None) -> Reducer:
    (reducer,) = LocalCollective(1).run(lambda rank: Reducer(make_plan(None, 1), rank, name=name))
    if value is not None:
        reducer.carry(1, np.full(1, value, np.float32))
    return reducer


def test_state_waits_for_reducers_that_come_later(tmp_path, clean) -> None:
    made = [alone(f"late{i}", i + 1.0) for i in range(3)]
    made[0].step.assign(7)
    gc.save_state(tmp_path)
    gc.save_state(tmp_path / "other", step=3)
    del made
    assert gc.restore_state(tmp_path) == 7
    assert sorted(live.waiting) == ["late0", "late1", "late2"]
    live._counts.clear()  # as in a new process
    late = alone("late1")
    np.testing.assert_array_equal(late.carried[1].numpy(), [2.0])
    assert sorted(live.waiting) == ["late0", "late2"]
    # What nobody has asked for is saved again.
    gc.save_state(tmp_path)
    gc.save_state(tmp_path)
    assert gc.restore_state(tmp_path) == 0
    np.testing.assert_array_equal(alone("late2").carried[1].numpy(), [3.0])


def test_what_waits_for_another_number_of_ranks_is_not_saved_again(tmp_path, clean) -> None:
    run(2, lambda rank: save(tmp_path, rank, trained(rank)))
    gc.restore_state(tmp_path)
    assert list(live.waiting) == ["r"]
    with pytest.warns(UserWarning, match=r"\['r'\] is not saved again"):
        gc.save_state(tmp_path)


def test_a_reducer_that_was_not_saved_is_told(tmp_path, clean) -> None:
    gc.save_state(tmp_path)
    reducer = alone("new", 5.0)
    with pytest.warns(UserWarning, match="holds nothing for new"):
        gc.restore_state(tmp_path)
    np.testing.assert_array_equal(reducer.carried[1].numpy(), [5.0])


def test_equal_names_are_told_apart_by_their_order(clean) -> None:
    kept = [alone("same"), alone("same")]
    assert list(live.reducers()) == ["same", "same#1"]
    del kept[0]
    assert list(live.reducers()) == ["same#1"]


def net(units: int = 3, seed: int = 1) -> keras.Model:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.layers.Input((5,)),
            keras.layers.Dense(units, dtype="bfloat16"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(2),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def fit(model: keras.Model, **options: Any) -> None:
    x = np.random.default_rng(0).standard_normal((24, 5)).astype(np.float32)
    model.fit(x, x[:, :2], batch_size=4, verbose=0, shuffle=False, **options)


def test_weights_seeds_and_optimizer_variables_come_along(tmp_path, clean) -> None:
    model = net()
    fit(model)
    gc.save_state(tmp_path, model=model, step=6)
    fit(model)
    other = net(seed=2)
    other.optimizer.build(other.trainable_variables)
    with pytest.warns(UserWarning, match="have another path"):
        assert gc.restore_state(tmp_path, model=other) == 6
    fit(other)
    for ours, theirs in zip(
        [*model.variables, *model.optimizer.variables],
        [*other.variables, *other.optimizer.variables],
        strict=True,
    ):
        assert ours.numpy().tobytes() == theirs.numpy().tobytes(), ours.path


@pytest.mark.filterwarnings("ignore:a model's variables")
def test_another_model_raises_before_anything_is_assigned(tmp_path, clean) -> None:
    model = net()
    gc.save_state(tmp_path, model=model)
    before = [w.copy() for w in model.get_weights()]
    for other, told in (
        (net(units=4), r"shape \[5, 3\], and .* has \[5, 4\]"),
        (keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)]), "variables of a"),
    ):
        with pytest.raises(gc.StateError, match=told):
            gc.restore_state(tmp_path, model=other)
    for now, then in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)
    with pytest.raises(gc.StateError, match="no weights yet"):
        gc.save_state(tmp_path, model=keras.Sequential([keras.layers.Dense(1)]))


def test_no_weights_in_the_file_is_a_warning(tmp_path, clean) -> None:
    gc.save_state(tmp_path)
    with pytest.warns(UserWarning, match="holds no weights"):
        gc.restore_state(tmp_path, model=net())


@pytest.mark.parametrize(
    ("every", "options", "steps"),
    [
        (4, {}, [8, 12]),
        (4, {"epochs": 3}, [12, 16]),
        (5, {"steps_per_execution": 3}, [6, 12]),
        (None, {"epochs": 3}, [12, 18]),
    ],
)
def test_the_callback_saves_in_time(tmp_path, clean, every, options, steps) -> None:
    model = net()
    model.compile("sgd", "mse", steps_per_execution=options.pop("steps_per_execution", 1))
    fit(model, **{"epochs": 2, **options}, callbacks=[gc.SaveState(tmp_path, every)])
    found = sorted({member.generation for member in list_members(tmp_path)})
    read = []
    for number in found:
        from gradcomp.archive import Archive

        name = f"generation-{number:08d}.rank-0-of-1.npz"
        archive = Archive(tmp_path / name, name)
        read.append(archive.metadata["step"])
        archive.close()
    assert read == steps
    callback = gc.SaveState(tmp_path, 5, done=read[-1])
    fit(model, callbacks=[callback])
    assert callback.done == read[-1] + 6
    with pytest.raises(ValueError, match="got 0"):
        gc.SaveState(tmp_path, 0)
