"""A reducer: one set of variables' gradients, its residuals, and their exchange at each step.

Engines own reducers. A reducer owns the state (`tf.Variable`s); everything below it is pure.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from gradcomp import feedback, kinds, live
from gradcomp.bucket import Bucket
from gradcomp.collective import Collective, Meter
from gradcomp.errors import StateError
from gradcomp.exchange import Exchange, Randomness, exchange_sparse
from gradcomp.feedback import BucketState
from gradcomp.handshake import describe_plan, shake_hands
from gradcomp.hierarchy import HierarchicalExchange, Levels, MeteredLevels
from gradcomp.kinds import Gradient
from gradcomp.plan import Plan
from gradcomp.xla import refuse_xla


@dataclass(frozen=True)
class Traffic:
    """What a reducer has moved so far, on this rank.

    Attributes:
      steps: exchanges so far.
      raw_bytes: bytes that the same gradients would have sent uncompressed.
      sent_bytes: bytes sent, counted at the collectives; of a hierarchical exchange, those sent to
        other hosts.
      local_bytes: bytes that a hierarchical exchange sent within the host; 0 otherwise.
      compressed_numel, total_numel: parameters whose gradients are compressed, and all.
    """

    steps: int
    raw_bytes: int
    sent_bytes: int
    local_bytes: int
    compressed_numel: int
    total_numel: int

    @property
    def compression_ratio(self) -> float:
        """Raw bytes ÷ sent bytes; 1.0 where there was nothing to send."""
        return self.raw_bytes / self.sent_bytes if self.raw_bytes and self.sent_bytes else 1.0


class Reduction(NamedTuple):
    """Gradients after a step's exchange.

    Attributes:
      gradients: one a variable of the plan, equal on all ranks.
      present: bool [variables], whether any rank had a gradient. Where it is false the gradient is
        meaningless and the variable must be left as it is.
    """

    gradients: list[Gradient]
    present: tf.Tensor


@dataclass
class _Step:
    """What grows while a step's buckets are exchanged."""

    meter: Meter
    levels: MeteredLevels | None
    randomness: Randomness
    gradients: list[Gradient]
    missing: frozenset[int]
    present: tf.Tensor
    verdicts: list[tf.Tensor] = field(default_factory=list)
    updates: list[tuple[tf.Variable, tf.Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reduced: list[Gradient] = list(self.gradients)


class Reducer:
    """Reduces the gradients of `plan.variables` over the ranks of `collective`.

    Create it on every rank at the same point of the program: it shakes hands at once.

    Args:
      average: mean over ranks if True, else sum.
      error_feedback: keep what lossy codecs drop, and send it later.
      seed: of the random bits of stochastic rounding.
      predivide: what uncompressed gradients are divided by before they are summed, and multiplied
        by afterwards.
      levels: of a hierarchical exchange, as the plan's `hosts` says.
      name: prefix of the collectives' names; equal on all ranks, unique in the program.

    Raises:
      MismatchError: ranks disagree about the plan or an option.
    """

    def __init__(
        self,
        plan: Plan,
        collective: Collective,
        *,
        average: bool = True,
        error_feedback: bool = True,
        seed: int = 0,
        predivide: float = 1.0,
        levels: Levels | None = None,
        name: str,
    ) -> None:
        self.plan = plan
        self._collective = collective
        self._average = average
        self._seed = seed
        self._predivide = predivide
        self._levels = levels
        self._name = name
        self.alone = collective.size == 1
        self._kinds: tuple[str, ...] | None = None
        self._compiled = False
        with tf.init_scope():
            if not self.alone:
                options = {
                    "average": average,
                    "error_feedback": error_feedback,
                    "seed": seed,
                    "gradient_predivide_factor": predivide,
                }
                shake_hands(collective, describe_plan(plan, **options), name)
            self._ones = tf.Variable(tf.ones(len(plan.variables)), trainable=False, name="ones")
            self.step = tf.Variable(0, trainable=False, dtype=tf.int64, name="step")
            self._counters = {
                what: tf.Variable(0, trainable=False, dtype=tf.int64, name=what)
                for what in ("steps", "raw_bytes", "sent_bytes", "local_bytes")
            }
            # By the variable's index, and for the second phase by the bucket's.
            self.residuals: dict[int, tf.Variable] = {}
            self.chunk_residuals: dict[int, tf.Variable] = {}
            # Restored residuals of variables that keep none here: sent whole at the next step.
            self.carried: dict[int, tf.Variable] = {}
            if error_feedback and not self.alone and self.keeper is not None:
                self._create_residuals()
            live.register(self, name)

    def _create_residuals(self) -> None:
        for bucket in filter(feedback.has_feedback, self.plan.buckets):
            for v in bucket.variables:
                self.residuals[v.index] = _zeros(v.shape, f"residual_{v.index}")
            if bucket.route == "two_phase":
                self.chunk_residuals[bucket.index] = _zeros(
                    (bucket.chunks[self.keeper or 0].numel,), f"chunk_residual_{bucket.index}"
                )

    @property
    def name(self) -> str:
        """Prefix of the collectives' names."""
        return self._name

    @property
    def rank(self) -> int:
        """Of this process among those that exchange."""
        return self._collective.rank

    @property
    def keeper(self) -> int | None:
        """Place of this rank among those that encode and keep residuals; None where it doesn't."""
        if self._levels is None:
            return self._collective.rank
        return None if self._levels.cross is None else self._levels.cross.rank

    @property
    def average(self) -> bool:
        """Mean over ranks if True, else sum."""
        return self._average

    def carry(self, index: int, residual: np.ndarray) -> None:
        """Adds `residual` to the next gradient of a variable that keeps no residual here.

        Raises:
          StateError: a step was compiled already, which would not know of it.
        """
        if index not in self.carried:
            if self._compiled:
                raise StateError(
                    f"{self._name} has run in a compiled step, which can't take up residuals of "
                    "another number of ranks or another codec; restore before the first step"
                )
            self.carried[index] = _zeros(residual.shape, f"carried_{index}")
        self.carried[index].assign(residual)

    def traffic(self) -> Traffic:
        """Bytes and steps so far; read it outside a `tf.function`."""
        counts = {what: int(counter.numpy()) for what, counter in self._counters.items()}
        return Traffic(
            **counts,
            compressed_numel=self.plan.compressed_numel,
            total_numel=self.plan.total_numel,
        )

    def everywhere(self, verdict: tf.Tensor) -> tf.Tensor:
        """True where `verdict`, a bool scalar, is true on all ranks."""
        if self.alone:
            return verdict
        refuse_xla()
        denials = tf.cast(tf.logical_not(verdict), tf.float32)
        (count,) = self._collective.all_reduce(
            [denials], average=False, name=f"{self._name}.verdict"
        )
        return tf.equal(count, 0)

    def reduce(self, gradients: Sequence[Gradient]) -> Reduction:
        """Exchanges one step's gradients.

        All ranks send the same collectives whatever gradients they have: a gradient that is None
        counts as zeros. Residuals and the step counter change only if every reduced value is
        finite; those of a variable that no rank has a gradient for don't change.

        Args:
          gradients: one a variable of the plan, in its order; None where there is none here.
        """
        self._compiled |= not tf.executing_eagerly()
        if self.alone:
            _warn_alone(self.plan)
            self._count(raw=0, sent=0, local=0)
            present = tf.constant([gradient is not None for gradient in gradients])
            sent, updates = feedback.send_carried(gradients, self.carried, present)
            if updates:
                finite = tf.reduce_all([feedback.is_finite(g) for g in sent if g is not None])
                feedback.commit(finite, updates, self.step)
            return Reduction(sent, present)
        refuse_xla()
        meter = Meter(self._collective)
        missing = frozenset(i for i, gradient in enumerate(gradients) if gradient is None)
        present = self._present(missing, meter)
        filled = self.fill(gradients)
        filled, updates = feedback.send_carried(filled, self.carried, present)
        randomness = Randomness(self._seed, self.step.read_value())
        levels = None if self._levels is None else self._levels.metered()
        step = _Step(meter, levels, randomness, filled, missing, present, updates=updates)
        # Always true, and there so that a graph keeps the collective behind `present` where nothing
        # else looks at it: ranks that do look, since they keep residuals or lack a gradient, would
        # wait for ever. A control dependency would be optimised away.
        step.verdicts.append(tf.reduce_any(present) | tf.reduce_all(~present))
        for bucket in self.plan.buckets:
            self._reduce_bucket(bucket, step)
        for index in self._sparse_indices:
            step.reduced[index], finite = exchange_sparse(
                filled[index], meter, average=self._average, name=f"{self._name}.sparse{index}"
            )
            step.verdicts.append(finite)
        feedback.commit(tf.reduce_all(step.verdicts), step.updates, self.step)
        raw = self.plan.dense_bytes if self.keeper is not None else 0
        sent, local = (meter.sent, 0) if levels is None else levels.sent(meter.sent)
        self._count(raw, sent, local)
        return Reduction(step.reduced, present)

    def fill(self, gradients: Sequence[Gradient]) -> list[Gradient]:
        """Every variable's gradient in the form in which ranks agreed to send it."""
        if self._kinds is None:
            mine = tuple(map(kinds.kind_of, gradients))
            with tf.init_scope():
                everyones = self._collective.all_gather_object(mine, name=f"{self._name}.kinds")
            self._kinds = tuple(map(kinds.common, zip(*everyones, strict=True)))
        return [
            kinds.as_sparse(g, v) if kind == kinds.SPARSE else kinds.as_dense(g, v)
            for g, v, kind in zip(gradients, self.plan.variables, self._kinds, strict=True)
        ]

    def unused(self, index: int) -> bool:
        """Whether no rank had a gradient for the variable when `reduce` was first called."""
        return self._kinds is not None and self._kinds[index] == kinds.NONE

    @property
    def _sparse_indices(self) -> list[int]:
        return [i for i, kind in enumerate(self._kinds or ()) if kind == kinds.SPARSE]

    def _present(self, missing: frozenset[int], meter: Meter) -> tf.Tensor:
        """For each variable whether any rank has a gradient for it, bool [variables]."""
        # Known when the step begins: the sum arrives before the first gradient does. It is taken
        # of a variable, since TensorFlow would fold a collective of constants away.
        mine = self._ones * np.array([v.index not in missing for v in self.plan.variables], "f4")
        (counts,) = meter.all_reduce([mine], average=False, name=f"{self._name}.present")
        return counts > 0

    def _reduce_bucket(self, bucket: Bucket, step: _Step) -> None:
        variables = [v for v in bucket.variables if v.index not in self._sparse_indices]
        if not variables:
            return
        # The layout is the plan's, so that a chunk's residual keeps its place: a variable whose
        # gradients turn out to be sparse leaves zeros in it.
        gradients = [
            step.gradients[v.index] if v in variables else tf.zeros(v.shape, v.dtype)
            for v in bucket.variables
        ]
        old = self._state(bucket)
        result = self._exchange(bucket, step)(gradients, old)
        step.verdicts.append(result.finite)
        new = feedback.keep_absent(
            bucket,
            self.keeper or 0,
            old,
            result.state,
            frozenset(p for p, v in enumerate(bucket.variables) if v.index in step.missing),
            tf.gather(step.present, [v.index for v in bucket.variables]),
        )
        for position, v in enumerate(bucket.variables):
            if v in variables:
                step.reduced[v.index] = result.gradients[position]
            if new.residuals is not None:
                step.updates.append((self.residuals[v.index], new.residuals[position]))
        if new.chunk_residual is not None:
            step.updates.append((self.chunk_residuals[bucket.index], new.chunk_residual))

    def _exchange(self, bucket: Bucket, step: _Step) -> Exchange | HierarchicalExchange:
        name = f"{self._name}.bucket{bucket.index}"
        if step.levels is not None:
            return HierarchicalExchange(
                bucket,
                step.levels,
                step.meter.size,
                step.randomness,
                self._average,
                name,
                self._predivide,
            )
        return Exchange(
            bucket,
            step.meter,
            step.randomness,
            self._average,
            name,
            predivide=self._predivide,
        )

    def _state(self, bucket: Bucket) -> BucketState:
        if bucket.variables[0].index not in self.residuals:
            return BucketState()
        chunk = self.chunk_residuals.get(bucket.index)
        return BucketState(
            [self.residuals[v.index].read_value() for v in bucket.variables],
            None if chunk is None else chunk.read_value(),
        )

    def _count(self, raw: Any, sent: Any, local: Any) -> None:
        for counter, value in zip(self._counters.values(), (1, raw, sent, local), strict=True):
            counter.assign_add(tf.cast(value, tf.int64))


def _zeros(shape: tuple[int, ...], name: str) -> tf.Variable:
    return tf.Variable(tf.zeros(shape), trainable=False, dtype=tf.float32, name=name)


_said_alone = False


def _warn_alone(plan: Plan) -> None:
    global _said_alone
    if not _said_alone and any(v.codec is not None for v in plan.variables):
        _said_alone = True
        warnings.warn(
            "there is one process only, so there is nothing to compress: gradients are used as "
            "they are; start several, e.g. with `horovodrun -np 2 python train.py`",
            stacklevel=3,
        )
