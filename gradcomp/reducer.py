"""A reducer: one set of variables' gradients, its residuals, and their exchange at each step.

Engines own reducers. A reducer owns the state (`tf.Variable`s); everything below it is pure.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from gradcomp import feedback, kernels, kinds, live
from gradcomp.chooser import Chooser
from gradcomp.collective import Collective, Meter
from gradcomp.errors import StateError
from gradcomp.exchange import Randomness
from gradcomp.handshake import describe_plan, shake_hands
from gradcomp.hierarchy import Levels, Meters
from gradcomp.kinds import Gradient
from gradcomp.momentum import Momentum, Velocities
from gradcomp.plan import Plan
from gradcomp.record import Record
from gradcomp.service import Service
from gradcomp.slots import slot
from gradcomp.stages import Epoch
from gradcomp.step import Kept, Route, Step
from gradcomp.traffic import Traffic
from gradcomp.ways import Chosen
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


class Reducer:
    """Reduces the gradients of `plan.variables` over the ranks of `collective`.

    Create it on every rank at the same point of the program: it shakes hands at once.

    Args:
      average: mean over ranks if True, else sum.
      error_feedback: keep what lossy codecs drop, and send it later.
      momentum: what to accumulate before that; None for nothing.
      seed: of the random bits of stochastic rounding.
      predivide: what uncompressed gradients are divided by before they are summed, and multiplied
        by afterwards.
      levels: of a hierarchical exchange, as the plan's `hosts` says.
      chooser: of another replica in this process, where a codec decides; None to make one.
      name: prefix of the collectives' names; equal on all ranks, unique in the program.
      key: under which saved state finds it; None for the name.

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
        predivide: float = 1.0,
        levels: Levels | None = None,
        chooser: Chooser | None = None,
        name: str,
        key: str | None = None,
    ) -> None:
        self._plan = plan
        self.chooser = chooser
        self._chosen: Chosen | None = None
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
                    "error_feedback": momentum or error_feedback,
                    "seed": seed,
                    "gradient_predivide_factor": predivide,
                }
                shake_hands(collective, describe_plan(plan, **options), name)
                if plan.decides:
                    self._choose()
            self._service = Service()
            self._ones = slot(tf.ones(len(plan.variables)), "ones")
            with kernels.on_host():
                self.step = slot(0, "step", tf.int64)
            self.epoch = Epoch(plan, live.epoch)
            self.record = Record(len(plan.variables))
            self._counters = {
                what: slot(0, what, tf.int64)
                for what in ("steps", "raw_bytes", "sent_bytes", "local_bytes")
            }
            # By the variable's index, and for the second phase by the bucket's.
            self.residuals: dict[int, tf.Variable] = {}
            self.chunk_residuals: dict[int, tf.Variable] = {}
            self._velocities = Velocities(momentum, plan.variables, collective.size, average)
            # Restored residuals of variables that keep none here: sent whole at the next step.
            self.carried: dict[int, tf.Variable] = {}
            if error_feedback and not self.alone and self.keeper is not None:
                self._create_residuals()
            live.register(self, key or name)

    def _choose(self) -> None:
        if self.chooser is None:
            exchanging = self._collective if self._levels is None else self._levels.cross
            self.chooser = Chooser(self._plan, self._collective, exchanging, self._name)
        self._chosen = Chosen(self.chooser, self._collective.in_branches)

    @property
    def plan(self) -> Plan:
        """What is exchanged, with what an `Auto` has chosen so far."""
        if self._chosen is not None and self._plan.chosen != self._chosen.numbers:
            self._plan = replace(self._plan, chosen=self._chosen.numbers)
        return self._plan

    def choose_again(self) -> bool:
        """Lets an `Auto` look at the link between epochs, where compiled steps can't do it.

        All ranks call it together. Returns True where something else was chosen.
        """
        if self._chosen is None or self._collective.in_branches:
            return False
        assert self.chooser is not None
        return self.chooser.look()

    def send_waiting(self) -> None:
        """Lets residuals that were given from outside be sent, however gradients are sent."""
        if self._chosen is not None:
            self._chosen.send_waiting()

    def _create_residuals(self) -> None:
        for bucket in filter(feedback.has_feedback, self._plan.layouts):
            for v in bucket.variables:
                self.residuals[v.index] = slot(tf.zeros(v.shape), f"residual_{v.index}")
            if bucket.route == "two_phase":
                self.chunk_residuals[bucket.index] = slot(
                    tf.zeros(bucket.chunks[self.keeper or 0].numel),
                    f"chunk_residual_{bucket.index}",
                )

    @property
    def name(self) -> str:
        """Prefix of the collectives' names."""
        return self._name

    @property
    def local(self) -> list[Reducer]:
        """Itself: the only reducer that an optimizer has in this process."""
        return [self]

    def share(self, content: bytes) -> list[bytes]:
        """`content` only: each rank writes a checkpoint of its own."""
        return [content]

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
            self.carried[index] = slot(tf.zeros(residual.shape), f"carried_{index}")
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
        """True where `verdict`, a bool scalar, is true on all ranks, so that the step goes on."""
        if self.alone:
            self.record.skip_unless(verdict)
            return verdict
        refuse_xla()
        denials = self._service.guard(tf.cast(tf.logical_not(verdict), tf.float32))
        (count,) = self._collective.all_reduce(
            [denials], average=False, name=f"{self._name}.verdict"
        )
        finite = tf.equal(count, 0)
        self.record.skip_unless(finite)
        return finite

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
            self._count(raw=0, sent=0, local=0)
            present = tf.constant([gradient is not None for gradient in gradients])
            self.record.write(tf.cast(present, tf.float32), finite=True)
            steps, velocities = self._velocities.accumulate(gradients)
            sent, updates = feedback.send_carried(steps, self.carried, present)
            updates += [(self.velocities[i], velocity) for i, velocity in velocities.items()]
            sent = _as_given(sent, gradients)
            if updates:
                finite = tf.reduce_all([feedback.is_finite(g) for g in sent if g is not None])
                feedback.commit(finite, updates, self.step)
            return Reduction(sent, present)
        refuse_xla()
        levels = None if self._levels is None else self._levels.metered()
        meters = Meters(Meter(self._collective), levels)
        missing = frozenset(i for i, gradient in enumerate(gradients) if gradient is None)
        ranks, stage = self._agree(missing, meters.flat)
        present = ranks > 0
        filled = self.fill(gradients)
        accumulated, velocities = self._velocities.accumulate(filled)
        accumulated, updates = feedback.send_carried(accumulated, self.carried, present)
        step = Step(
            Route(
                self.plan,
                self._average,
                self._predivide,
                self.keeper,
                self._name,
                self._service.guard,
            ),
            Kept(self.residuals, self.chunk_residuals, self.velocities),
            meters,
            Randomness(self._seed, self.step.read_value()),
            accumulated,
            self.sparse_indices,
            missing,
            present,
            stage,
            velocities,
            updates,
            None if self._chosen is None else self._chosen.step(self._service.guard),
        )
        step.run()
        reduced = _as_given(step.reduced, filled)
        step.verdicts += [
            feedback.is_finite(narrow)
            for narrow, wide in zip(reduced, step.reduced, strict=True)
            if narrow is not wide
        ]
        finite = tf.reduce_all(step.verdicts)
        feedback.commit(finite, step.updates, self.step)
        self.record.write(ranks, finite, stage)
        self._count(step.raw_bytes(), *meters.sent())
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
    def sparse_indices(self) -> list[int]:
        """The variables whose gradients ranks agreed to send as slices."""
        return [i for i, kind in enumerate(self._kinds or ()) if kind == kinds.SPARSE]

    def _agree(self, missing: frozenset[int], meter: Meter) -> tuple[tf.Tensor, tf.Tensor]:
        """What ranks have to know of each other when a step begins.

        Returns:
          (float32 [variables], how many ranks have a gradient; int32 scalar, the stage of the
          warm-up).
        """
        # The sum arrives before the first gradient does. It is taken of a variable, since
        # TensorFlow would fold a collective of constants away.
        mine = self._ones * np.array([v.index not in missing for v in self.plan.variables], "f4")
        told = tf.concat([mine, self.epoch.flags()], 0) if self.plan.warmup_epochs else mine
        told = self._service.guard(told)
        (counts,) = meter.all_reduce([told], average=False, name=f"{self._name}.present")
        numel = len(self.plan.variables)
        return counts[:numel], self.epoch.stage(counts[numel:], meter.size)

    def _count(self, raw: Any, sent: Any, local: Any) -> None:
        for counter, value in zip(self._counters.values(), (1, raw, sent, local), strict=True):
            counter.assign_add(tf.cast(value, tf.int64))


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
