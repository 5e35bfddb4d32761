"""DESIGN's invariants as scenarios for Horovod ranks."""

import tensorflow as tf
from invariants import all_checks, disagreement, make_plan
from invariants_sparse import CODECS, sparse_conservation

import gradcomp as gc
from gradcomp.horovod.collective import HorovodCollective


def _checked(check, name):
    return lambda: check(HorovodCollective(), f"test.{name}")


CHECKS = dict(all_checks(in_turn=True))  # LocalCollectives have them all
SCENARIOS = {name: _checked(check, number) for number, (name, check) in enumerate(CHECKS.items())}


def _disagree():
    return disagreement(
        HorovodCollective(),
        lambda r: make_plan(gc.Quantize(bits=4) if r == 1 else gc.TopK(0.01), 3),
        "test.disagree",
    )


SCENARIOS["disagreement"] = _disagree


def _sparse_in_graphs():
    """Both forms that slices take on the wire are branches of one graph."""
    for number, codec in enumerate((None, CODECS[1])):
        sparse_conservation(
            HorovodCollective(),
            codec,
            number % 2 == 0,
            f"test.graph{number}",
            wrap=tf.function(autograph=False, reduce_retracing=True),
        )


SCENARIOS["sparse_in_graphs"] = _sparse_in_graphs
