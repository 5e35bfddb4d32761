"""Hierarchical exchanges, and residuals that change their number of ranks, on real Horovod ranks.

Jobs of 2, 4, 3, 2 and 1 ranks, one after the other, restore what earlier ones saved. Those of 4 and
3 ranks are on two pretended hosts, 2 + 2 and 2 + 1, and go on to exchange between them.
"""

import pytest
from ranks import launch, values
from scenarios_hosts import OURS, UNEQUAL

DYNAMIC = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
# name, ranks on each host, restored jobs
JOBS = {
    "two": ((1, 1), ""),
    "four": ((2, 2), "two"),
    "three": ((2, 1), ""),
    "again": ((2,), "four three"),
    "one": ((1,), "two"),
}
ON_HOSTS = ("four", "three")
STEPS = 12
SIZES = {job: sum(hosts) for job, (hosts, _) in JOBS.items()}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Outcomes by job; the first test that looks at one waits for it and those before it."""
    base = tmp_path_factory.mktemp("jobs")

    class Outcomes(dict):
        def __missing__(self, job: str) -> dict:
            hosts, restored = JOBS[job]
            for other in restored.split():
                assert self[other]
            env = {"RANKS_FOLDER": str(base), "RANKS_JOB": job, "RANKS_RESTORE": restored}
            module = "scenarios_hosts" if job in ON_HOSTS else "scenarios_ranks"
            env |= DYNAMIC if job in ON_HOSTS else {}
            folder = tmp_path_factory.mktemp(job)
            self[job] = launch(module, sum(hosts), folder, env, timeout=500, hosts=hosts)
            return self[job]

    return Outcomes()


@pytest.mark.parametrize("job", ["two", "four", "three"])
def test_what_was_saved_holds_both_phases(outcomes, job) -> None:
    told = values(outcomes[job], "what_waits_is_saved", SIZES[job])
    leaders = {"two": (0, 1), "four": (0, 2), "three": (0, 2)}[job]
    for rank, (*flat, average, total) in enumerate(told):
        assert flat == [[True, True]] * 2
        assert [average, total] == [[rank in leaders] * 2] * 2


@pytest.mark.parametrize(
    ("job", "restored"),
    [("four", ["two"]), ("again", ["four", "three"]), ("one", ["two"])],
    ids=["2→4", "4→2 and 3→2", "2→1"],
)
def test_another_number_of_ranks_keeps_the_contribution(outcomes, job, restored) -> None:
    """Both operations and both phases, flat and hierarchical: see scenarios_ranks."""
    told = values(outcomes[job], "states_of_other_jobs_are_restored", SIZES[job])
    assert told == [restored] * SIZES[job]


def test_on_one_host_nothing_is_compressed_and_one_warning_says_so(outcomes) -> None:
    for hosts, warned in values(outcomes["again"], "optimizers_are_made", 2):
        assert hosts == 0
        (warning,) = warned
        assert "all 2 ranks are on one host" in warning
    saved = values(outcomes["again"], "what_waits_is_saved", 2)
    assert saved == [[[True, True]] * 2 + [[False, False]] * 2] * 2
    for job, hosts in (("two", 0), ("four", 2), ("three", 2)):
        told = values(outcomes[job], "optimizers_are_made", SIZES[job])
        assert told == [(hosts, [])] * SIZES[job]


@pytest.mark.parametrize("job", ON_HOSTS)
@pytest.mark.parametrize("scenario", OURS)
def test_scenario(outcomes, job, scenario) -> None:
    values(outcomes[job], scenario, SIZES[job])


@pytest.mark.parametrize("scenario", UNEQUAL)
def test_on_hosts_of_unequal_sizes(outcomes, scenario) -> None:
    values(outcomes["three"], scenario, SIZES["three"])


@pytest.mark.parametrize("job", ON_HOSTS)
def test_bytes_between_hosts_are_planned_and_local_ones_are_apart(outcomes, job) -> None:
    for rank, told in enumerate(values(outcomes[job], "fit_with_every_route", SIZES[job])):
        for spec, (losses, plan, traffic) in told.items():
            assert losses[-1] < 0.9 * losses[0], spec
            leads = rank in (0, 2)
            sizes = JOBS[job][0]
            last = rank in (sizes[0] - 1, sum(sizes) - 1)
            # A float32 a variable says which ranks have gradients, around a ring of all ranks.
            flags = 2 * (SIZES[job] - 1) * 4 * len(plan.variables) // SIZES[job]
            assert traffic.steps == STEPS
            assert traffic.sent_bytes == STEPS * (plan.sent_bytes * leads + flags * last), spec
            alone = sizes[rank >= sizes[0]] == 1
            assert traffic.local_bytes >= (0 if alone else STEPS * plan.raw_bytes)
            assert traffic.raw_bytes == STEPS * plan.dense_bytes * leads
            assert plan.hosts == sizes


@pytest.mark.parametrize("job", ON_HOSTS)
def test_a_rank_without_the_option_is_named_on_all(outcomes, job) -> None:
    told = values(outcomes[job], "a_rank_without_the_option_is_found_out", SIZES[job])
    assert len(set(told)) == 1
    assert "disagree about the hierarchical" in told[0]
    assert f"False on rank {SIZES[job] - 1}" in told[0]
