"""Horovod as the carrier of bytes."""

from __future__ import annotations

import itertools
import os
import warnings
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from gradcomp import kernels, live, succession
from gradcomp.collective import Collective, alone, timed
from gradcomp.handshake import shake_hands
from gradcomp.hierarchy import Levels, Ranks
from gradcomp.horovod.groups import (
    add_process_sets,
    known_process_set,
    process_set_of,
    ranks_by_host,
)
from gradcomp.options import Options
from gradcomp.plan import Plan
from gradcomp.policy import Policy
from gradcomp.reducer import Reducer


class HorovodCollective:
    """All ranks of the running Horovod job, or those of a process set.

    `rank` and `size` are those inside the set. Horovod pairs up operations by name. Names carry the
    shape and dtype, so that an operation of another size can never be taken for this one.
    """

    in_branches = True
    local = 1

    def __init__(self, process_set: Any = hvd.global_process_set) -> None:
        if not hvd.is_initialized():
            raise RuntimeError(
                "Horovod is not initialized: call `hvd.init()` at the start of the program"
            )
        self._set = process_set
        self.rank = process_set.rank()
        self.size = process_set.size()
        everyone = process_set.process_set_id == hvd.global_process_set.process_set_id
        of = "Horovod" if everyone else "a process set of Horovod"
        self.engine = f"{of} with {self.size} ranks"

    def all_reduce(
        self, tensors: Sequence[tf.Tensor], *, average: bool, name: str
    ) -> list[tf.Tensor]:
        static = all(t.shape.is_fully_defined() for t in tensors)
        numel = sum(t.shape.num_elements() for t in tensors) if static else "dynamic"
        # A group is one collective of fixed layout; single tensors would be fused as they happen to
        # arrive, and from three ranks on the order of a ring's additions depends on the layout.
        return hvd.grouped_allreduce(
            list(tensors),
            op=hvd.Average if average else hvd.Sum,
            name=f"{name}.{tensors[0].dtype.name}.{numel}",
            ignore_name_scope=True,
            process_set=self._set,
        )

    def all_gather(self, payload: tf.Tensor, *, sizes: Sequence[int], name: str) -> tf.Tensor:
        total = sum(sizes)
        with _carrying():
            gathered = hvd.allgather(
                payload,
                name=f"{name}.uint8.{total}",
                ignore_name_scope=True,
                process_set=self._set,
            )
        return tf.ensure_shape(gathered, [total])

    def all_to_all(
        self, payload: tf.Tensor, *, splits: Sequence[int] | tf.Tensor, name: str
    ) -> tf.Tensor:
        static = not tf.is_tensor(splits)
        with _carrying():
            received, _ = hvd.alltoall(
                payload,
                splits=tf.cast(splits, tf.int32),
                name=f"{name}.uint8.{sum(splits) if static else 'dynamic'}",
                ignore_name_scope=True,
                process_set=self._set,
            )
        return tf.ensure_shape(received, [self.size * splits[self.rank] if static else None])

    def broadcast(self, payload: tf.Tensor, *, name: str) -> tf.Tensor:
        with _carrying():
            return hvd.broadcast(
                payload,
                self._set.ranks[0],  # also in a set, Horovod's root is one of all ranks
                name=f"{name}.uint8.{payload.shape.num_elements()}",
                ignore_name_scope=True,
                process_set=self._set,
            )

    def all_gather_rows(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        with _carrying():
            return hvd.allgather(
                tensor,
                name=f"{name}.{tensor.dtype.name}",
                ignore_name_scope=True,
                process_set=self._set,
            )

    def all_gather_object(self, value: Any, *, name: str) -> list[Any]:
        return hvd.allgather_object(value, name=name, process_set=self._set)

    def exchange_time(self, payload: int, *, name: str) -> float:
        content, sizes = tf.zeros([payload], tf.uint8), [payload] * self.size
        return timed(lambda: self.all_gather(content, sizes=sizes, name=name).numpy())


def _carrying() -> AbstractContextManager[Any]:
    """Where payloads travel: with NCCL from GPU to GPU, else they cross to the host as they are."""
    return nullcontext() if hvd.nccl_built() else kernels.on_host()


def _reach(ranks: Ranks | None) -> Collective | None:
    if not hvd.is_initialized():
        return None
    process_set = known_process_set(ranks)
    return HorovodCollective(process_set) if process_set.included() else alone()


live.set_world(_reach)
live.late = os.environ.get("HOROVOD_ELASTIC") == "1"  # what Horovod's launchers set

_ordinals: defaultdict[tuple[str, int], itertools.count[int]] = defaultdict(itertools.count)


def unique_name(kind: str, process_set: Any = hvd.global_process_set) -> str:
    """A prefix for one reducer's operations: ranks that run the same program get the same one.

    Ranks outside a process set need not know of its reducers, so each set counts its own.
    """
    number = process_set.process_set_id
    nth = next(_ordinals[kind, number])
    return f"gradcomp.{kind}{nth}" + (f".set{number}" if number else "")


def retire_all() -> None:
    """Ends all reducers, since other ranks exchange from now on; names are counted anew.

    A process that has just come counts from the start, and has to arrive at the same names.
    """
    succession.retire_all()
    _ordinals.clear()


def make_reducer(plan: Plan, options: Options, name: str, before: Reducer | None = None) -> Reducer:
    """A reducer over the ranks that `options` names; shakes hands with them.

    Args:
      plan: for all of these ranks; a hierarchical exchange makes its own of it.
      before: exchanged the same gradients among other ranks; what it kept goes on.

    Raises:
      ValueError: a hierarchical exchange in an elastic job.
    """
    if options.hierarchical and live.late:
        raise ValueError(
            "hierarchical=True can't be used in an elastic job, whose hosts change; leave it out"
        )
    process_set = known_process_set(options.process_set)
    if not process_set.included():
        # As in Horovod, a rank outside uses its gradients as they are.
        return Reducer(
            plan,
            alone(),
            average=options.average,
            momentum=options.momentum,
            name=f"{name}.outside",
        )
    everyone = HorovodCollective(process_set)
    levels = None
    if options.hierarchical and everyone.size > 1:
        with tf.init_scope():
            plan, levels = _hierarchy(plan, everyone, name)
    reducer = Reducer(
        plan,
        everyone,
        average=options.average,
        error_feedback=bool(options.error_feedback),
        momentum=options.momentum,
        seed=options.seed,
        predivide=options.gradient_predivide_factor,
        levels=levels,
        name=name,
    )
    succession.succeed(reducer, before)
    return reducer


def _hierarchy(plan: Plan, everyone: HorovodCollective, name: str) -> tuple[Plan, Levels | None]:
    """The plan for these hosts and the rank's levels; no levels where ranks are all alike."""
    # First of all, since a rank that was not told hierarchical=True would not answer the rest.
    shake_hands(everyone, {"hierarchical": True}, name)
    place = (hvd.local_rank(), hvd.local_size(), hvd.cross_rank())
    hosts = ranks_by_host(everyone.all_gather_object(place, name=f"{name}.hosts"))
    if len(hosts) == 1:
        _warn_one_host(plan)
        why = "all ranks are on one host"
        dense = [replace(v, codec=None, why=v.why or why) for v in plan.variables]
        return replace(plan, variables=tuple(dense)), None
    if len(hosts) == everyone.size:
        return plan, None
    add_process_sets([*hosts, tuple(host[0] for host in hosts)])

    def collective_of(ranks: Ranks) -> Collective:
        return HorovodCollective(process_set_of(ranks)) if len(ranks) > 1 else alone()

    levels = Levels.of(everyone.rank, hosts, collective_of)
    sizes = tuple(map(len, hosts))
    return replace(plan, hosts=sizes, leads=levels.cross is not None), levels


_said_one_host = False


def _warn_one_host(plan: Plan) -> None:
    global _said_one_host
    if not _said_one_host and any(v.codec is not None for v in plan.variables):
        _said_one_host = True
        warnings.warn(
            f"hierarchical=True, and all {plan.world_size} ranks are on one host, so nothing is "
            "compressed: gradients are summed as they are; leave hierarchical at False to compress "
            "between the ranks of a host",
            stacklevel=2,
        )


def reducer_of(
    variables: Sequence[Any], options: Options, kind: str, before: Reducer | None = None
) -> Reducer:
    """The reducer of an optimizer or a tape, named after its `kind`."""
    process_set = known_process_set(options.process_set)
    # There is nothing to compress outside of a set, nor in one of one rank.
    exchanges = process_set.included() and (options.process_set is None or process_set.size() > 1)
    policy = options.policy if exchanges else Policy()
    plan = policy.plan(variables, process_set.size() if exchanges else 1, options.bucket_bytes)
    plan = replace(plan, momentum=options.momentum is not None)
    return make_reducer(plan, options, unique_name(kind, process_set), before)
