"""A reducer: one set of variables' gradients, its residuals, and their exchange at each step.

Engines own reducers. A reducer owns the state (`tf.Variable`s); everything below it is pure.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from gradcomp import feedback, kinds, live
from gradcomp.bucket import Bucket, sent_bytes
from gradcomp.collective import Collective, Meter
from gradcomp.errors import StateError
from gradcomp.exchange import Exchange, Randomness
from gradcomp.feedback import BucketState
from gradcomp.handshake import describe_plan, shake_hands
from gradcomp.kinds import Gradient
from gradcomp.momentum import Momentum, Velocities
from gradcomp.plan import Plan
from gradcomp.service import Service
from gradcomp.sparse import SparseExchange
from gradcomp.stages import Epoch, Exchanging, reduce_in_stage
from gradcomp.traffic import Traffic
from gradcomp.xla import refuse_xla


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
    randomness: Randomness
    gradients: list[Gradient]
    missing: frozenset[int]
    present: tf.Tensor
    stage: tf.Tensor
    velocities: dict[int, tf.Tensor]
    verdicts: list[tf.Tensor] = field(default_factory=list)
    updates: list[tuple[tf.Variable, tf.Tensor | tf.IndexedSlices]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reduced: list[Gradient] = list(self.gradients)


class Reducer:
    """Reduces the gradients of `plan.variables` over the ranks of `collective`.

    Create it on every rank at the same point of the program: it shakes hands at once.

    Args:
      average: mean over ranks if True, else sum.
      error_feedback: keep what lossy codecs drop, and send it later.
      momentum: what to accumulate before that; None for nothing.
      seed: of the random bits of stochastic rounding.
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
        momentum: Momentum | None = None,
        seed: int = 0,
        name: str,
    ) -> None:
        self.plan = plan
        self._collective = collective
        self._average = average
        self._seed = seed
        self._name = name
        self.alone = collective.size == 1
        self._kinds: tuple[str, ...] | None = None
        self._compiled = False
        with tf.init_scope():
            if not self.alone:
                options = {
                    "average": average,
                    "error_feedback": momentum or error_feedback,
                    "seed": seed,
                }
                shake_hands(collective, describe_plan(plan, **options), name)
            self._service = Service()
            self._ones = tf.Variable(tf.ones(len(plan.variables)), trainable=False, name="ones")
            self.step = tf.Variable(0, trainable=False, dtype=tf.int64, name="step")
            self.epoch = Epoch(plan, live.epoch)
            self._counters = {
                what: tf.Variable(0, trainable=False, dtype=tf.int64, name=what)
                for what in ("steps", "raw_bytes", "sent_bytes")
            }
            # By the variable's index, and for the second phase by the bucket's.
            self.residuals: dict[int, tf.Variable] = {}
            self.chunk_residuals: dict[int, tf.Variable] = {}
            self._velocities = Velocities(momentum, plan.variables, collective.size, average)
            # Restored residuals of variables that keep none here: sent whole at the next step.
            self.carried: dict[int, tf.Variable] = {}
            if error_feedback and not self.alone:
                self._create_residuals()
            live.register(self, name)

    def _create_residuals(self) -> None:
        for bucket in filter(feedback.has_feedback, self.plan.buckets):
            for v in bucket.variables:
                self.residuals[v.index] = _zeros(v.shape, f"residual_{v.index}")
            if bucket.route == "two_phase":
                self.chunk_residuals[bucket.index] = _zeros(
                    (bucket.chunks[self._collective.rank].numel,), f"chunk_residual_{bucket.index}"
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
    def average(self) -> bool:
        """Mean over ranks if True, else sum."""
        return self._average

    @property
    def velocities(self) -> dict[int, tf.Variable]:
        """Of momentum correction, by the variable's index; empty without."""
        return self._velocities.kept

    @property
    def collective(self) -> Collective:
        """The ranks that exchange."""
        return self._collective

    @property
    def retired(self) -> bool:
        """Whether it exchanges no more, since other ranks do."""
        return self._service.ended

    def retire(self) -> None:
        """Lets it exchange no more, in steps that were compiled with it either."""
        self._service.end()

    def count_on(self, before: Reducer) -> None:
        """Counts on from what `before` has moved."""
        for what, counter in self._counters.items():
            counter.assign(before._counters[what])

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
        denials = self._service.guard(tf.cast(tf.logical_not(verdict), tf.float32))
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

        Raises:
          tf.errors.InvalidArgumentError: the reducer has retired; nothing is sent.
        """
        self._compiled |= not tf.executing_eagerly()
        if self.alone:
            _warn_alone(self.plan)
            gradients = [self._service.guard(gradient) for gradient in gradients]
            self._count(raw=0, sent=0)
            present = tf.constant([gradient is not None for gradient in gradients])
            steps, velocities = self._velocities.accumulate(gradients)
            sent, updates = feedback.send_carried(steps, self.carried, present)
            updates += [(self.velocities[i], velocity) for i, velocity in velocities.items()]
            sent = _as_given(sent, gradients)
            if updates:
                finite = tf.reduce_all([feedback.is_finite(g) for g in sent if g is not None])
                feedback.commit(finite, updates, self.step)
            return Reduction(sent, present)
        refuse_xla()
        meter = Meter(self._collective)
        missing = frozenset(i for i, gradient in enumerate(gradients) if gradient is None)
        present, stage = self._agree(missing, meter)
        filled = self.fill(gradients)
        steps, velocities = self._velocities.accumulate(filled)
        steps, updates = feedback.send_carried(steps, self.carried, present)
        randomness = Randomness(self._seed, self.step.read_value())
        step = _Step(meter, randomness, steps, missing, present, stage, velocities, updates=updates)
        for bucket in self.plan.buckets:
            self._reduce_bucket(bucket, step)
            self._reduce_sparse(bucket, step)
        reduced = _as_given(step.reduced, filled)
        step.verdicts += [
            feedback.is_finite(narrow)
            for narrow, wide in zip(reduced, step.reduced, strict=True)
            if narrow is not wide
        ]
        feedback.commit(tf.reduce_all(step.verdicts), step.updates, self.step)
        self._count(self._raw_bytes(filled), meter.sent)
        return Reduction(reduced, present)

    def fill(self, gradients: Sequence[Gradient]) -> list[Gradient]:
        """Every variable's gradient in the form in which ranks agreed to send it."""
        if self._kinds is None:
            mine = tuple(map(kinds.kind_of, gradients))
            with tf.init_scope():
                everyones = self._collective.all_gather_object(mine, name=f"{self._name}.kinds")
            self._kinds = tuple(map(kinds.common, zip(*everyones, strict=True)))
        self._velocities.refuse_sparse([kind == kinds.SPARSE for kind in self._kinds])
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

    def _agree(self, missing: frozenset[int], meter: Meter) -> tuple[tf.Tensor, tf.Tensor]:
        """What ranks have to know of each other when a step begins.

        Returns:
          (bool [variables], whether any rank has a gradient; int32 scalar, the stage of the
          warm-up).
        """
        # The sum arrives before the first gradient does. It is taken of a variable, since
        # TensorFlow would fold a collective of constants away.
        mine = self._ones * np.array([v.index not in missing for v in self.plan.variables], "f4")
        told = self._service.guard(tf.concat([mine, self.epoch.flags()], 0))
        (counts,) = meter.all_reduce([told], average=False, name=f"{self._name}.present")
        numel = len(self.plan.variables)
        return counts[:numel] > 0, self.epoch.stage(counts[numel:], meter.size)

    def _raw_bytes(self, gradients: Sequence[Gradient]) -> Any:
        """What the gradients would cost as they are: slices gathered, tensors all-reduced."""
        size, dense, sliced = self._collective.size, 0, 0
        for v, gradient in zip(self.plan.variables, gradients, strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                for tensor in (gradient.values, gradient.indices):
                    sliced += (size - 1) * tensor.dtype.size * tf.size(tensor, tf.int64)
            else:
                dense += v.raw_bytes
        return sent_bytes("dense", size, dense, dense) + sliced

    def _reduce_sparse(self, bucket: Bucket, step: _Step) -> None:
        for v in bucket.variables:
            if v.index not in self._sparse_indices:
                continue
            residual = self.residuals.get(v.index)
            reduce = SparseExchange(
                v,
                len(self.plan.variables),
                bucket.codec,
                step.meter,
                step.randomness,
                self._average,
                f"{self._name}.sparse{v.index}",
            )
            result = reduce(self._service.guard(step.gradients[v.index]), residual)
            step.reduced[v.index] = result.slices
            step.verdicts.append(result.finite)
            if residual is not None:
                step.updates.append((residual, result.residual))

    def _reduce_bucket(self, whole: Bucket, step: _Step) -> None:
        bucket = whole.without(self._sparse_indices)
        if not bucket.variables:
            return
        gradients = [step.gradients[v.index] for v in bucket.variables]
        # The bucket's payload has to wait for every one of them.
        gradients[0] = self._service.guard(gradients[0])
        old = self._state(whole, bucket)
        begun = old
        if old.velocities is not None:
            begun = replace(old, velocities=[step.velocities[v.index] for v in bucket.variables])

        def exchange(staged: Bucket, meter: Meter, suffix: str) -> Exchanging:
            name = f"{self._name}.bucket{bucket.index}{suffix}"
            return Exchange(staged, meter, step.randomness, self._average, name)

        stages = self.plan.stages[bucket.index]
        parts = {id(staged): staged.without(self._sparse_indices) for staged in stages}
        result = reduce_in_stage(
            exchange,
            [parts[id(staged)] for staged in stages],
            step.stage,
            step.meter,
            self._average,
            gradients,
            begun,
        )
        step.verdicts.append(result.finite)
        new = feedback.keep_absent(
            bucket,
            step.meter.rank,
            old,
            result.state,
            frozenset(p for p, v in enumerate(bucket.variables) if v.index in step.missing),
            tf.gather(step.present, [v.index for v in bucket.variables]),
        )
        for position, v in enumerate(bucket.variables):
            step.reduced[v.index] = result.gradients[position]
            if new.residuals is not None:
                step.updates.append((self.residuals[v.index], new.residuals[position]))
            if new.velocities is not None:
                step.updates.append((self.velocities[v.index], new.velocities[position]))
        if new.chunk_residual is not None:
            chunk = self.chunk_residuals[bucket.index]
            value = feedback.put_chunk(
                whole, bucket, step.meter.rank, chunk.read_value(), new.chunk_residual
            )
            step.updates.append((chunk, value))

    def _state(self, whole: Bucket, bucket: Bucket) -> BucketState:
        def values(kept: dict[int, tf.Variable]) -> list[tf.Tensor] | None:
            indices = [v.index for v in bucket.variables]
            return [kept[i].read_value() for i in indices] if indices[0] in kept else None

        chunk = self.chunk_residuals.get(bucket.index)
        return BucketState(
            values(self.residuals),
            None
            if chunk is None
            else feedback.take_chunk(whole, bucket, self._collective.rank, chunk.read_value()),
            values(self.velocities),
        )

    def _count(self, raw: Any, sent: Any) -> None:
        for what, value in (("steps", 1), ("raw_bytes", raw), ("sent_bytes", sent)):
            self._counters[what].assign_add(tf.cast(value, tf.int64))


def _zeros(shape: tuple[int, ...], name: str) -> tf.Variable:
    return tf.Variable(tf.zeros(shape), trainable=False, dtype=tf.float32, name=name)


def _as_given(reduced: Sequence[Gradient], gradients: Sequence[Gradient]) -> list[Gradient]:
    """Reduced gradients in the gradients' own dtypes: velocities are wider."""
    return [
        r if g is None or r.dtype == g.dtype else tf.cast(r, g.dtype)
        for r, g in zip(reduced, gradients, strict=True)
    ]


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
