"""Elastic jobs on real workers: one is killed, others come, and no survivor's residual is lost."""

from typing import Any

import numpy as np
import pytest
from elastic import HOSTS, TESTS, events, launch_elastic, pace

Event = tuple[str, dict[str, Any]]
PROGRAM = str(TESTS / "scenarios_elastic.py")


@pytest.fixture(scope="module")
def fit(tmp_path_factory) -> dict[str, list[Event]]:
    folder = tmp_path_factory.mktemp("fit")
    launch_elastic([PROGRAM, "fit"], folder, [f"{host}:1" for host in HOSTS[:2]])
    return events(folder)


@pytest.fixture(scope="module")
def loop(tmp_path_factory) -> dict[str, list[Event]]:
    """All workers start at once and none comes later, so a short time limit does."""
    folder = tmp_path_factory.mktemp("loop")
    hosts = [f"{host}:1" for host in HOSTS]
    launch_elastic([PROGRAM, "loop", "wait_for", "3"], folder, hosts, gloo_timeout=10)
    return events(folder)


def every(noted: list[Event], name: str) -> list[dict[str, Any]]:
    return [facts for event, facts in noted if event == name]


def before(noted: list[Event], name: str, nth: int, of: str) -> dict[str, Any]:
    """The last event `of` before the nth event `name`."""
    at = [i for i, (event, _) in enumerate(noted) if event == name][nth]
    return every(noted[:at], of)[-1]


def same(these: list[np.ndarray], those: list[np.ndarray]) -> bool:
    return [a.tobytes() for a in these] == [a.tobytes() for a in those]


def firsts(facts: dict[str, Any]) -> dict[str, np.ndarray]:
    return {k: v for k, v in facts["residuals"].items() if k.startswith("residual/")}


def test_fit_goes_on_from_the_last_commit_after_a_worker_was_killed(fit) -> None:
    survivor = fit["localhost.0"]
    begins, commit = every(survivor, "begin"), before(survivor, "begin", 1, "save")
    again = begins[1]
    where = [(facts["epoch"], facts["batch"]) for facts in (commit, again)]
    assert where[0] == where[1] == (1, 5)
    last = before(survivor, "begin", 1, "batch")
    assert (last["epoch"], last["batch"]) >= (1, 6), "nothing to roll back: the test shows nothing"
    assert same(again["variables"], commit["variables"])
    assert again["step"] == commit["step"] == 15


def test_fit_keeps_the_survivors_residuals(fit) -> None:
    survivor = fit["localhost.0"]
    commit, again = before(survivor, "begin", 1, "save"), every(survivor, "begin")[1]
    assert all(residual.any() for residual in firsts(commit).values())
    assert again["residuals"].keys() == commit["residuals"].keys()
    for name, residual in commit["residuals"].items():
        np.testing.assert_array_equal(again["residuals"][name], residual)


def test_fit_rolls_nothing_back_when_a_host_is_added(fit) -> None:
    """Under Average, a residual counts for a third where it counted for one half."""
    for worker in ("localhost.0", "127.1.0"):
        noted = fit[worker]
        again, nth = every(noted, "begin")[-1], len(every(noted, "begin")) - 1
        left = before(noted, "begin", nth, "save")
        assert (left["size"], again["size"]) == (2, 3)
        for what in ("epoch", "batch", "step", "exchanges"):
            assert again[what] == left[what], what
        done = before(noted, "begin", nth, "batch")
        assert (left["epoch"], left["batch"]) > (done["epoch"], done["batch"])
        assert same(again["variables"], left["variables"])
        for name, residual in firsts(left).items():
            assert residual.any()
            np.testing.assert_allclose(again["residuals"][name], 1.5 * residual, rtol=1e-6)


def test_a_worker_that_joins_starts_with_the_others_weights_and_no_residuals(fit) -> None:
    for worker, nth in (("127.1.0", 1), ("localhost.1", 2)):
        joined, old = every(fit[worker], "begin")[0], every(fit["localhost.0"], "begin")[nth]
        assert same(joined["variables"], old["variables"])
        assert joined["residuals"]
        assert not any(residual.any() for residual in joined["residuals"].values())
        for what in ("epoch", "batch", "step", "size", "name"):
            assert joined[what] == old[what], what


def test_all_workers_choose_anew_and_alike_whenever_they_change(fit) -> None:
    """By the link between those that there are, which differs here by their number."""
    told = [begin for noted in fit.values() for begin in every(noted, "begin")]
    by_size = {size: [b for b in told if b["size"] == size] for size in (2, 3)}
    assert [len(by_size[size]) for size in (2, 3)] == [4, 3]
    for size, begins in by_size.items():
        assert len({begin["chosen"] for begin in begins}) == 1
        assert any(begins[0]["chosen"])
        for begin in begins:
            assert begin["bandwidth"] == pytest.approx(pace(size), rel=0.01)


def test_fit_ends_everywhere_after_whole_epochs(fit) -> None:
    ends = [every(noted, "end") for worker, noted in fit.items() if worker != f"{HOSTS[1]}.0"]
    assert len(ends) == 3
    for (end,) in ends:
        assert end["size"] == 3
        assert end["steps"] % 10 == 0
    assert not every(fit[f"{HOSTS[1]}.0"], "end")
    # Each epoch has ten batches, though one was begun twice, and one was done by two and three.
    told = every(fit["localhost.0"], "batch") + every(fit["localhost.0"], "save")
    done = {(facts["epoch"], facts["batch"]) for facts in told if facts["batch"]}
    assert len(done) == end["steps"]
    assert sorted(done) == [(e, b) for e in range(end["steps"] // 10) for b in range(1, 11)]


def test_reset_callbacks_know_the_new_workers(fit) -> None:
    assert [r["size"] for r in every(fit["localhost.0"], "reset")] == [2, 3]


def survivors(loop) -> list[list[Event]]:
    found = [noted for noted in loop.values() if every(noted, "end")]
    assert len(found) == 2
    return found


def test_loop_goes_on_from_the_last_commit(loop) -> None:
    for noted in survivors(loop):
        commit, again = before(noted, "begin", 1, "save"), every(noted, "begin")[1]
        assert commit["number"] == again["number"] == 6
        assert (commit["size"], again["size"]) == (3, 2)
        assert same(again["variables"], commit["variables"])
        assert every(noted, "end") == [{"size": 2, "steps": 20}]


def test_loop_puts_the_second_phase_together_from_the_survivors(loop) -> None:
    """Two are left, which have no second phase: each takes half of it, under Sum."""
    commits = [before(noted, "begin", 1, "save") for noted in survivors(loop)]
    together = {}
    for commit in commits:
        seconds = [name for name in commit["residuals"] if name.startswith("second/")]
        assert any(commit["residuals"][name].any() for name in seconds)
        for name in seconds:
            _, index, start = name.split("/")
            values = commit["residuals"][name]
            numel = commit["residuals"][f"residual/{index}"].size
            whole = together.setdefault(index, np.zeros(numel, np.float32))
            whole[int(start) : int(start) + values.size] += values
    for noted, commit in zip(survivors(loop), commits, strict=True):
        first, again = every(noted, "made")
        assert not any(residual.any() for residual in first["residuals"].values())
        assert again["name"] == first["name"]
        assert again["step"] == commit["step"] == 6
        assert not any(name.startswith("second/") for name in again["residuals"])
        for name, residual in firsts(commit).items():
            # Of some variables the one that was killed had the only piece.
            second = together.get(name.split("/")[1], np.zeros(residual.size, np.float32))
            expected = residual + 0.5 * second.reshape(residual.shape)
            assert residual.any()
            np.testing.assert_allclose(again["residuals"][name], expected, rtol=1e-6, atol=1e-9)


def test_a_step_compiled_for_other_workers_says_so_before_it_sends(loop) -> None:
    for noted in survivors(loop):
        (told,) = every(noted, "stale")
        assert "compiled for the ranks that there were" in told["message"]
        assert "call tf.function(step) inside the function" in told["message"]
