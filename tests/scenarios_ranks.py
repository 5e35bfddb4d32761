"""Residuals that a job of some ranks saved go on in jobs of other numbers of ranks and hosts.

RANKS_FOLDER is where. RANKS_RESTORE names the jobs whose state is restored here, RANKS_JOB this
one. Each job has the same four optimizers: Average and Sum, flat and hierarchical.
"""

from __future__ import annotations

import itertools
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from invariants import TwoPhaseQuantize, contribution

import gradcomp as gc
import gradcomp.horovod as hvd

CODEC = TwoPhaseQuantize(bits=4, block_size=32)
SHAPES = ((40, 30), (9, 200))
STEPS = 3

optimizers: list[Any] = []


def optimizers_are_made() -> tuple[int, list[str]]:
    """Returns on how many hosts, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for hierarchical, op in itertools.product((False, True), (hvd.Average, hvd.Sum)):
            opt = hvd.DistributedOptimizer(
                keras.optimizers.SGD(1.0),
                compression=CODEC,
                op=op,
                bucket_bytes=4000,
                hierarchical=hierarchical,
            )
            opt.build([keras.Variable(np.zeros(s, np.float32)) for s in SHAPES])
            optimizers.append(opt)
    return len(optimizers[-1].plan.hosts or ()), [str(w.message) for w in caught]


def waiting(opt: Any) -> list[np.ndarray]:
    """What all ranks' residuals together will add to the reduced gradients to come."""
    everyones = hvd.allgather_object(contribution(opt._reducer, SHAPES))
    return [sum(one) for one in zip(*everyones, strict=True)]


def train(opt: Any) -> list[np.ndarray]:
    """Some steps; returns what was applied beyond what was given."""
    share = 1 / hvd.size() if opt.options.average else 1.0
    before = [v.numpy().astype(np.float64) for v in opt._trainable_variables]
    given = [np.zeros(s) for s in SHAPES]
    for step in range(STEPS):
        rng = np.random.default_rng([hvd.rank(), step, hvd.size()])
        mine = [rng.standard_normal(s).astype(np.float32) for s in SHAPES]
        for total, gradient in zip(given, mine, strict=True):
            total += share * gradient
        opt.apply([tf.constant(g) for g in mine])
    everyones = [sum(one) for one in zip(*hvd.allgather_object(given), strict=True)]
    after = [v.numpy() for v in opt._trainable_variables]
    return [b - a - g for b, a, g in zip(before, after, everyones, strict=True)]


def folder(job: str) -> Path:
    return Path(os.environ["RANKS_FOLDER"]) / job


def states_of_other_jobs_are_restored() -> list[str]:
    jobs = os.environ["RANKS_RESTORE"].split()
    for job in jobs:
        gc.restore_state(folder(job))
        saved = pickle.loads((folder(job) / "waiting.pickle").read_bytes())
        for opt, expected in zip(optimizers, saved, strict=True):
            told = f"{job}, {opt.options}"
            largest = max(np.abs(e).max() for e in expected)
            assert largest > 0.01, f"{told}: nothing waits"
            first = waiting(opt)
            for now, then in zip(first, expected, strict=True):
                np.testing.assert_allclose(now, then, rtol=0, atol=1e-6 * largest, err_msg=told)
            # And it arrives: what is applied beyond what is given is what waits no longer.
            for beyond, was, is_left in zip(train(opt), first, waiting(opt), strict=True):
                bound = 2e-6 * (1 + largest) * hvd.size() * STEPS
                np.testing.assert_allclose(beyond, was - is_left, rtol=0, atol=bound, err_msg=told)
    return jobs


def what_waits_is_saved() -> list[list[bool]]:
    """Returns of each optimizer whether residuals of each phase hold something."""
    for opt in optimizers:
        train(opt)
    where = folder(os.environ["RANKS_JOB"])
    gc.save_state(where)
    everyones = [waiting(opt) for opt in optimizers]
    if hvd.rank() == 0:
        (where / "waiting.pickle").write_bytes(pickle.dumps(everyones))
    reducers = [opt._reducer for opt in optimizers]
    return [
        [any(np.any(v.numpy()) for v in kept.values()) for kept in (r.residuals, r.chunk_residuals)]
        for r in reducers
    ]


SCENARIOS = {
    f.__name__: f
    for f in (optimizers_are_made, states_of_other_jobs_are_restored, what_waits_is_saved)
}
