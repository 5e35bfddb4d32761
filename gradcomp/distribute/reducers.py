"""One reducer for each replica that lives in this process, used as if they were one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from gradcomp.kinds import Gradient
from gradcomp.plan import Plan
from gradcomp.reducer import Reducer, Reduction
from gradcomp.stages import Epoch
from gradcomp.traffic import Traffic


class ReplicaReducers:
    """What an optimizer asks of a reducer; each replica's own answers, by the context of the call.

    Args:
      strategy: whose replicas they are.
      make: makes the reducer of a replica, given its rank among all replicas.
      ranks: of the replicas of this process.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        make: Callable[[int], Reducer],
        ranks: Sequence[int],
    ) -> None:
        devices = strategy.extended.worker_devices
        # In a thread of its own, which is in no strategy's scope, so that a replica's residuals are
        # plain variables on its device. A strategy would make copies of them for the others.
        with ThreadPoolExecutor(1) as outside:

            def create(rank: int, device: str) -> Reducer:
                with tf.device(device):
                    return make(rank)

            futures = [outside.submit(create, *r) for r in zip(ranks, devices, strict=True)]
            self._reducers = {r: f.result() for r, f in zip(ranks, futures, strict=True)}
        self._first = self._reducers[ranks[0]]

    @property
    def local(self) -> list[Reducer]:
        """The reducers of this process."""
        return list(self._reducers.values())

    def share(self, content: bytes) -> list[bytes]:
        """`content` of every worker, once each; all of them call it."""
        collective = self._first.collective
        return collective.all_gather_object(content, name=f"{self.name}.share")[:: len(self.local)]

    @property
    def plan(self) -> Plan:
        return self._first.plan

    retired = False  # a strategy's replicas never change

    @property
    def epoch(self) -> Epoch:
        """Of the first replica: none of them warms up."""
        return self._first.epoch

    def choose_again(self) -> bool:
        """As `Reducer.choose_again`, for all replicas of this process."""
        changed = self._first.choose_again()
        if changed:
            for reducer in self.local:
                reducer.send_waiting()
        return changed

    @property
    def average(self) -> bool:
        return self._first.average

    @property
    def alone(self) -> bool:
        return self._first.alone

    @property
    def name(self) -> str:
        return self._first.name

    def traffic(self) -> Traffic:
        """Of the first replica of this process."""
        return self._first.traffic()

    def everywhere(self, verdict: tf.Tensor) -> tf.Tensor:
        return self._here().everywhere(verdict)

    def fill(self, gradients: Sequence[Gradient]) -> list[Gradient]:
        return self._here().fill(gradients)

    def reduce(self, gradients: Sequence[Gradient]) -> Reduction:
        return self._here().reduce(gradients)

    def _here(self) -> Reducer:
        context = tf.distribute.get_replica_context()
        if context is None:
            raise RuntimeError(
                "gradients are exchanged in a replica's context: call optimizer.apply inside "
                "strategy.run(step)"
            )
        rank = int(tf.get_static_value(context.replica_id_in_sync_group))
        if rank not in self._reducers or context.num_replicas_in_sync != self.plan.world_size:
            raise RuntimeError(
                "the optimizer was built for other replicas than it is applied in: build the model "
                "and the optimizer inside strategy.scope(), and apply it in strategy.run"
            )
        return self._reducers[rank]
