"""DESIGN's invariants as scenarios for Horovod ranks."""

from invariants import all_checks, disagreement, make_plan

import gradcomp as gc
from gradcomp.horovod.collective import HorovodCollective


def _checked(check, name):
    return lambda: check(HorovodCollective(), f"test.{name}")


SCENARIOS = {name: _checked(check, number) for number, (name, check) in enumerate(all_checks())}


def _disagree():
    return disagreement(
        HorovodCollective(),
        lambda r: make_plan(gc.Quantize(bits=4) if r == 1 else gc.TopK(0.01), 3),
        "test.disagree",
    )


SCENARIOS["disagreement"] = _disagree
