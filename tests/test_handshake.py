"""Ranks that disagree: the same error on all, naming the difference, before anything is sent."""

from dataclasses import replace

import pytest

import gradcomp as gc
from gradcomp.bucket import VariableSpec
from gradcomp.collective import LocalCollective
from gradcomp.handshake import describe_plan, shake_hands
from gradcomp.plan import Plan

VARIABLES = (
    VariableSpec(0, "net/dense/kernel", (64, 32), "float32", gc.FP16()),
    VariableSpec(1, "net/conv/kernel", (32, 64), "float32", gc.FP16()),
)


def description(variables=VARIABLES, bucket_bytes=1000, **options):
    return describe_plan(Plan(tuple(variables), 3, bucket_bytes), seed=0, **options)


def changed(index, **fields):
    return [replace(v, **fields) if v.index == index else v for v in VARIABLES]


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        (
            description(changed(1, codec=gc.BF16())),
            "codec of variable 1 (net/conv/kernel): fp16 on ranks 0, 2; bf16 on rank 1",
        ),
        (description(changed(0, codec=None)), "codec of variable 0 (net/dense/kernel)"),
        (description(changed(0, shape=(32, 64))), "shape of variable 0 (net/dense/kernel)"),
        (description(changed(0, dtype="float16")), "dtype of variable 0"),
        (description(changed(0, path="net/conv/kernel")), "name of variable 0"),  # another order
        (description(VARIABLES[:1]), "number of variables: 2 on ranks 0, 2; 1 on rank 1"),
        (description(bucket_bytes=2000), "bucket_bytes: 1000 on ranks 0, 2; 2000 on rank 1"),
        (description(average=True), "number of settings"),
        ({**description(), "gradcomp version": "9.9"}, "gradcomp version"),
        ({**description(), "wire format": 2}, "wire format: 1 on ranks 0, 2; 2 on rank 1"),
    ],
)
def test_a_difference_is_named_alike_on_all_ranks(odd, told) -> None:
    def work(rank):
        with pytest.raises(gc.MismatchError) as caught:
            shake_hands(rank, odd if rank.rank == 1 else description(), "test")
        return str(caught.value)

    messages = LocalCollective(3).run(work)
    assert len(set(messages)) == 1
    assert told in messages[0]
    assert "Nothing was exchanged" in messages[0]


def test_numbers_that_keras_gives_names_are_no_difference() -> None:
    numbered = changed(0, path="net_1/dense_12/kernel")
    LocalCollective(2).run(
        lambda rank: shake_hands(
            rank, description(numbered) if rank.rank else description(), "test"
        )
    )


def test_many_ranks_are_not_all_listed() -> None:
    def work(rank):
        with pytest.raises(gc.MismatchError, match="1 on ranks 1, 2, 3, 4 and 2 more"):
            shake_hands(rank, {"seed": min(rank.rank, 1)}, "test")

    LocalCollective(7).run(work)
