"""One step's exchange of all gradients, bucket by bucket."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from gradcomp import feedback
from gradcomp.alternatives import reduce_as_chosen
from gradcomp.bucket import Bucket, sent_bytes
from gradcomp.exchange import Exchange, Randomness, Reduced
from gradcomp.feedback import BucketState
from gradcomp.hierarchy import HierarchicalExchange, Meters
from gradcomp.kinds import Gradient
from gradcomp.plan import Plan
from gradcomp.sparse import SparseExchange
from gradcomp.stages import Exchanging, Place, reduce_in_stage
from gradcomp.ways import Ways

Updates = list[tuple[tf.Variable, tf.Tensor | tf.IndexedSlices]]


@dataclass(frozen=True)
class Kept:
    """The variables that a reducer keeps from step to step.

    Attributes:
      residuals, velocities: by the variable's index.
      chunk_residuals: by the bucket's index.
    """

    residuals: Mapping[int, tf.Variable]
    chunk_residuals: Mapping[int, tf.Variable]
    velocities: Mapping[int, tf.Variable]


@dataclass(frozen=True)
class Route:
    """What is the same at each step of a reducer.

    Attributes:
      average: mean over ranks if True, else sum.
      predivide: what uncompressed gradients are divided by before they are summed.
      keeper: place of this rank among those that encode; None where it doesn't.
      name: prefix of the collectives' names.
      guard: hands on a gradient that is about to be sent, or fails.
    """

    plan: Plan
    average: bool
    predivide: float
    keeper: int | None
    name: str
    guard: Callable[[Gradient], Gradient]


@dataclass
class Step:
    """Reduces gradients, and collects what is to be committed.

    Attributes:
      gradients: one a variable of the plan, in the form in which ranks agreed to send it.
      sparse: indices of the variables whose gradients are slices.
      missing: indices of the variables that have no gradient on this rank.
      present: bool [variables], whether any rank has a gradient.
      stage: int32 scalar, of the warm-up.
      velocities: new ones, with this step's gradients in them.
      reduced: `gradients`, and after `run` what they have become.
      verdicts: bool scalars, whether reduced values are finite.
      updates: what to assign if they are.
      ways: None where no codec decides.
    """

    route: Route
    kept: Kept
    meters: Meters
    randomness: Randomness
    gradients: Sequence[Gradient]
    sparse: Collection[int]
    missing: frozenset[int]
    present: tf.Tensor
    stage: tf.Tensor
    velocities: Mapping[int, tf.Tensor]
    updates: Updates
    ways: Ways | None = None
    verdicts: list[tf.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reduced: list[Gradient] = list(self.gradients)
        # Always true, and there so that a graph keeps the collective behind `present` where nothing
        # else looks at it: ranks that do look, since they keep residuals or lack a gradient, would
        # wait for ever. A control dependency would be optimised away.
        self.verdicts.append(tf.reduce_any(self.present) | tf.reduce_all(~self.present))

    def run(self) -> None:
        """Exchanges every bucket."""
        for bucket in self.route.plan.layouts:
            self._reduce_bucket(bucket)
            self._reduce_sparse(bucket)
        if self.ways is not None:
            self.updates.append((self.ways.waiting, self._still_waiting(self.ways.waiting)))

    def raw_bytes(self) -> Any:
        """What the gradients would cost as they are: slices gathered, tensors all-reduced."""
        size, dense, sliced = self.meters.flat.size, 0, 0
        for v, gradient in zip(self.route.plan.variables, self.gradients, strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                for tensor in (gradient.values, gradient.indices):
                    sliced += (size - 1) * tensor.dtype.size * tf.size(tensor, tf.int64)
            else:
                dense += v.raw_bytes
        exchanging = self.route.plan.exchanging if self.route.keeper is not None else 1
        return sent_bytes("dense", exchanging, dense, dense) + sliced

    @property
    def _keeper(self) -> int:
        return self.route.keeper or 0

    def _reduce_sparse(self, bucket: Bucket) -> None:
        # Rows go from rank to rank also where hosts are summed first: uncompressed, since only
        # leaders keep residuals then. An Auto leaves them uncompressed: how many there are is known
        # at each step only.
        flat = self.meters.levels is None and not _decides(bucket)
        for v in bucket.variables:
            if v.index not in self.sparse:
                continue
            if _decides(bucket):
                self._send_waiting_rows(bucket, v.index)
            residual = self.kept.residuals.get(v.index) if flat else None
            reduce = SparseExchange(
                v,
                len(self.route.plan.variables),
                bucket.codec if flat else None,
                self.meters.flat,
                self.randomness,
                self.route.average,
                f"{self.route.name}.sparse{v.index}",
            )
            result = reduce(self.route.guard(self.gradients[v.index]), residual)
            self.reduced[v.index] = result.slices
            self.verdicts.append(result.finite)
            if residual is not None:
                self.updates.append((residual, result.residual))

    def _reduce_bucket(self, whole: Bucket) -> None:
        bucket, keeper = whole.without(self.sparse), self._keeper
        if not bucket.variables:
            return
        gradients = [self.gradients[v.index] for v in bucket.variables]
        # The bucket's payload has to wait for every one of them.
        gradients[0] = self.route.guard(gradients[0])
        old = self._state(whole, bucket)
        begun = old
        if old.velocities is not None:
            begun = replace(old, velocities=[self.velocities[v.index] for v in bucket.variables])
        result = self._reduced(whole, bucket, gradients, begun)
        self.verdicts.append(result.finite)
        new = feedback.keep_absent(
            bucket,
            keeper,
            old,
            result.state,
            frozenset(p for p, v in enumerate(bucket.variables) if v.index in self.missing),
            tf.gather(self.present, [v.index for v in bucket.variables]),
        )
        for position, v in enumerate(bucket.variables):
            self.reduced[v.index] = result.gradients[position]
            if new.residuals is not None:
                self.updates.append((self.kept.residuals[v.index], new.residuals[position]))
            if new.velocities is not None:
                self.updates.append((self.kept.velocities[v.index], new.velocities[position]))
        if new.chunk_residual is not None:
            chunk = self.kept.chunk_residuals[bucket.index]
            put = functools.partial(feedback.put_chunk, whole, bucket, keeper)
            self.updates.append((chunk, put(chunk.read_value(), new.chunk_residual)))

    def _reduced(
        self, whole: Bucket, bucket: Bucket, gradients: list[Gradient], state: BucketState
    ) -> Reduced:
        """`bucket`, which is `whole` without sparse variables, in its stage or as was chosen."""
        plan, index = self.route.plan, whole.index
        place = Place(self._keeper, plan.world_size if self.route.average else 1)
        if self.ways is not None and _decides(whole):
            return reduce_as_chosen(
                self._exchange,
                [way.without(self.sparse) for way in plan.alternatives[index]],
                self.ways.numbers[index],
                self.ways.waiting.read_value()[index] > 0,
                self.meters,
                place,
                gradients,
                state,
                bucket,
            )
        stages = plan.stages[index]
        parts = {id(staged): staged.without(self.sparse) for staged in stages}
        distinct = [parts[id(staged)] for staged in stages]
        return reduce_in_stage(
            self._exchange, distinct, self.stage, self.meters, place, gradients, state
        )

    def _send_waiting_rows(self, bucket: Bucket, index: int) -> None:
        """Adds what a table's residual was given, as by a restored state, to its gradient."""
        residual, slices = self.kept.residuals.get(index), self.gradients[index]
        if self.ways is None or residual is None:
            return

        def added() -> tuple[tf.Tensor, ...]:
            (sent,), ((_, left),) = feedback.send_carried(
                [slices], {0: residual}, self.present[index : index + 1]
            )
            return sent.values, sent.indices, left

        values, indices, left = tf.cond(
            self.ways.waiting.read_value()[bucket.index] > 0,
            added,
            lambda: (slices.values, slices.indices, residual.read_value()),
        )
        self.gradients = list(self.gradients)
        self.gradients[index] = tf.IndexedSlices(values, indices, slices.dense_shape)
        self.updates.append((residual, left))

    def _still_waiting(self, waiting: tf.Tensor) -> tf.Tensor:
        """What is to be noted if the step is committed: buckets of which a variable is absent."""
        absent = [
            tf.reduce_any(~tf.gather(self.present, [v.index for v in bucket.variables]))
            for bucket in self.route.plan.layouts
        ]
        return waiting * tf.cast(tf.stack(absent), tf.float32)

    def _exchange(self, bucket: Bucket, meters: Meters, suffix: str) -> Exchanging:
        name = f"{self.route.name}.bucket{bucket.index}{suffix}"
        options = (self.randomness, self.route.average, name)
        predivide = self.route.predivide
        if meters.levels is None:
            return Exchange(bucket, meters.flat, *options, predivide=predivide)
        size = self.route.plan.world_size
        return HierarchicalExchange(bucket, meters.levels, size, *options, predivide)

    def _state(self, whole: Bucket, bucket: Bucket) -> BucketState:
        def values(kept: Mapping[int, tf.Variable]) -> list[tf.Tensor] | None:
            indices = [v.index for v in bucket.variables]
            return [kept[i].read_value() for i in indices] if indices[0] in kept else None

        chunk = self.kept.chunk_residuals.get(bucket.index)
        return BucketState(
            values(self.kept.residuals),
            None
            if chunk is None
            else feedback.take_chunk(whole, bucket, self._keeper, chunk.read_value()),
            values(self.kept.velocities),
        )


def _decides(bucket: Bucket) -> bool:
    return bucket.codec is not None and bucket.codec.decides
