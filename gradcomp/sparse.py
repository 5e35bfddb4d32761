"""How slices are reduced over all ranks: gradients of a table of which a step touches some rows.

Duplicate rows are summed first. Row numbers are gathered as they are, so that every rank knows who
touched what; then values travel in the cheaper of two forms:

gathered   every rank encodes its own rows, as many as they are; all decode and sum all payloads
dense      a tensor of the rows that any rank touched, with zeros where a rank has none, is reduced
           in two phases where the codec allows it, else by a float32 all-reduce

Either way the sum is of one row for each row touched, ascending. A residual is a whole table: its
rows are sent with a gradient for them, and wait meanwhile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gradcomp import kernels
from gradcomp.bucket import VariableSpec
from gradcomp.codecs.base import Codec
from gradcomp.collective import Meter
from gradcomp.exchange import Randomness
from gradcomp.rows import Rows, gather_rows, owners_of, places_of, sum_duplicates

if TYPE_CHECKING:
    import tensorflow as tf


class ReducedRows(NamedTuple):
    """A table's gradient after the exchange.

    Attributes:
      slices: each touched row once, ascending; of the gradient's dtype; equal on all ranks.
      finite: bool scalar, whether all values are finite; equal on all ranks.
      residual: new rows of the residual, to be committed only if all of the step is finite; None
        without feedback.
    """

    slices: tf.IndexedSlices
    finite: tf.Tensor
    residual: tf.IndexedSlices | None


class _Sent(NamedTuple):
    """What an exchange comes to; a tuple of tensors, since it is returned from branches of a graph.

    Attributes:
      total: [U, *row shape], the sum or mean over ranks.
      rows, residual: int64 [R] and float32 [R, *row shape], rows of the residual that change.
      bytes: int64 scalar, sent by this rank.
    """

    total: tf.Tensor
    rows: tf.Tensor
    residual: tf.Tensor
    bytes: tf.Tensor


@dataclass(frozen=True)
class SparseExchange:
    """How the slices of one variable are reduced over all ranks.

    Attributes:
      codec: of the rows' values; None sends them as float32, or float64 where they are.
      streams: above every variable's index; the random bits of a table that is cut into parts come
        from a stream a part.
      average: mean over ranks if True, else sum.
      name: prefix of the collectives' names; equal on all ranks, unique within a step.
    """

    variable: VariableSpec
    streams: int
    codec: Codec | None
    collective: Meter
    randomness: Randomness
    average: bool
    name: str

    def __call__(self, slices: tf.IndexedSlices, residual: tf.Variable | None) -> ReducedRows:
        with kernels.beside([slices.values]):
            return self._reduce(slices, residual)

    def _reduce(self, slices: tf.IndexedSlices, residual: tf.Variable | None) -> ReducedRows:
        """Reduces one rank's slices, of any number of rows.

        Args:
          slices: rows in any order, also several times; on some ranks there may be none.
          residual: float32 of the table's shape; only the rows that are touched are read.
        """
        import tensorflow as tf

        mine, values = sum_duplicates(slices, self.variable, self.randomness.step)
        rows = gather_rows(mine, self.variable.shape[0], self.collective, f"{self.name}.rows")
        if self.collective.in_branches and self._worthwhile < self.collective.size:
            touched = tf.cast(tf.size(rows.union), tf.float64)
            contributed = tf.cast(tf.reduce_sum(rows.counts), tf.float64)
            dense = self._two_phase if self._has_two_phases else self._all_reduce
            sent = tf.cond(
                self._worthwhile * touched < contributed,
                lambda: dense(rows, values, residual),
                lambda: self._gathered(rows, values, residual),
            )
        else:
            sent = self._gathered(rows, values, residual)
        self.collective.sent += sent.bytes
        total = tf.cast(sent.total, slices.values.dtype)
        shape = tf.constant(self.variable.shape, tf.int64)
        return ReducedRows(
            tf.IndexedSlices(total, rows.union, shape),
            tf.reduce_all(tf.math.is_finite(total)),
            None if residual is None else tf.IndexedSlices(sent.residual, sent.rows, shape),
        )

    @property
    def _has_two_phases(self) -> bool:
        return self.codec is not None and "two_phase" in self.codec.routes

    @property
    def _worthwhile(self) -> float:
        """How many ranks, on average, must touch a row for the dense form to be the cheaper one.

        Gathered, a row costs N − 1 payloads for each rank that touches it; dense, 2(N − 1) payloads
        in two phases, or as many times its float32 by an all-reduce. Row numbers cost the same.
        """
        if self.codec is None or self._has_two_phases:
            return 2.0
        # Of many elements, so that what is rounded up does not count.
        many = 1 << 20
        return 2.0 * 4 * many / self.codec.payload_size(many)

    def _gathered(self, rows: Rows, values: tf.Tensor, residual: tf.Variable | None) -> _Sent:
        import tensorflow as tf

        collective = self.collective.fork()
        new = None
        if self.codec is None:
            wire = collective.all_gather_rows(values, name=f"{self.name}.values")
            everyones = tf.split(wire, rows.counts, num=self.collective.size)
        else:
            payload, new = self.codec.encode_bucket(
                [values],
                None if residual is None else [tf.gather(residual, rows.mine)],
                self._segments(self.codec, tf.shape(rows.mine, tf.int64)),
                self.randomness.key(collective.rank, phase=0),
            )
            payloads = collective.all_gather_rows(payload, name=f"{self.name}.payloads")
            everyones = self._decode(self.codec, payloads, rows.counts)
        # One rank after the other: in rank order everywhere, also where a scatter has no order.
        total = tf.zeros(self._shape_of(rows.union), values.dtype)
        for theirs, decoded in zip(rows.everyones, everyones, strict=True):
            total = tf.tensor_scatter_nd_add(total, places_of(rows.union, theirs), decoded)
        return self._sent(collective, self._scaled(total), rows.mine, new[0] if new else None)

    def _all_reduce(self, rows: Rows, values: tf.Tensor, residual: tf.Variable | None) -> _Sent:
        import tensorflow as tf

        collective = self.collective.fork()
        if residual is not None:
            values += tf.gather(residual, rows.mine)
        table = tf.scatter_nd(places_of(rows.union, rows.mine), values, self._shape_of(rows.union))
        (total,) = collective.all_reduce([table], average=False, name=f"{self.name}.all_reduce")
        left = None if residual is None else tf.zeros_like(values)
        return self._sent(collective, self._scaled(total), rows.mine, left)

    def _two_phase(self, rows: Rows, values: tf.Tensor, residual: tf.Variable | None) -> _Sent:
        """Each rank sums and encodes again the rows that it owns; ranks own what they touched.

        So what the second phase drops can stay in the owner's residual, at the row where it is sent
        again with the owner's next gradient for it; a residual of its own would wait for as long.
        """
        import tensorflow as tf

        codec, collective = self.codec, self.collective.fork()
        assert codec is not None
        owners = owners_of(rows)
        order = tf.argsort(owners, stable=True)
        owned = tf.math.bincount(owners, minlength=collective.size, dtype=tf.int64)
        owned = tf.ensure_shape(owned, [collective.size])
        union = tf.gather(rows.union, order)
        places = tf.gather(tf.math.invert_permutation(order), places_of(rows.union, rows.mine))

        def spread(mine: tf.Tensor) -> list[tf.Tensor]:
            table = tf.scatter_nd(places, mine, self._shape_of(union))
            return tf.split(table, owned, num=collective.size)

        segments = self._segments(codec, owned)
        old = None if residual is None else spread(tf.gather(residual, rows.mine))
        payload, left = codec.encode_bucket(
            spread(values), old, segments, self.randomness.key(collective.rank, phase=0)
        )
        received = collective.all_to_all(
            payload, splits=codec.payload_sizes(segments[:, 2]), name=f"{self.name}.all_to_all"
        )
        own = segments[collective.rank : collective.rank + 1]
        summed, dropped = codec.reduce_bucket(
            received,
            collective.size,
            None if residual is None else tf.zeros(own[0, 2:3]),
            own,
            self.randomness.key(collective.rank, phase=1),
            self._scale,
        )
        whole = collective.all_gather_rows(summed, name=f"{self.name}.sums")
        total = tf.concat(self._decode(codec, whole, owned), 0)
        ascending = tf.gather(total, tf.math.invert_permutation(order))
        if residual is None:
            return self._sent(collective, ascending, rows.mine, None)
        # A codec may make something of a rank's zeros, so untouched rows have their part in this.
        assert left is not None and dropped is not None
        waiting = tf.tensor_scatter_nd_update(
            tf.gather(residual, union), places, tf.zeros_like(values)
        )
        left[collective.rank] += tf.reshape(dropped / self._scale, tf.shape(left[collective.rank]))
        return self._sent(collective, ascending, union, waiting + tf.concat(left, 0))

    @property
    def _scale(self) -> float:
        return 1.0 / self.collective.size if self.average else 1.0

    def _scaled(self, total: tf.Tensor) -> tf.Tensor:
        return total * self._scale if self.average else total

    def _sent(
        self, collective: Meter, total: tf.Tensor, rows: tf.Tensor, residual: tf.Tensor | None
    ) -> _Sent:
        import tensorflow as tf

        if residual is None:
            rows, residual = rows[:0], tf.zeros((0, *self._row_shape))
        return _Sent(total, rows, residual, tf.cast(collective.sent, tf.int64))

    def _segments(self, codec: Codec, counts: tf.Tensor) -> tf.Tensor:
        """int64 [S, 5]: one segment, a tensor of its own, for each number of rows in `counts`."""
        import tensorflow as tf

        lengths = counts * math.prod(self._row_shape)
        place, nothing = tf.range(counts.shape[0], dtype=tf.int64), tf.zeros_like(lengths)
        kept = nothing + tf.cast(codec.kept(lengths), tf.int64)
        stream = self.variable.index + self.streams * place
        return tf.stack([place, nothing, lengths, kept, stream], axis=1)

    def _decode(self, codec: Codec, payload: tf.Tensor, counts: tf.Tensor) -> list[tf.Tensor]:
        """float32 [count, *row shape] for each number of rows in `counts`."""
        import tensorflow as tf

        shapes = [(count, *self._row_shape) for count in tf.unstack(counts)]
        segments, dtypes = self._segments(codec, counts), ["float32"] * len(shapes)
        return codec.decode_bucket(payload, 1, segments, 1.0, shapes, dtypes)[0]

    @property
    def _row_shape(self) -> tuple[int, ...]:
        return self.variable.shape[1:]

    def _shape_of(self, rows: tf.Tensor) -> tf.Tensor:
        """int32: the shape of the values of `rows`."""
        import tensorflow as tf

        return tf.concat([tf.shape(rows), tf.constant(self._row_shape, tf.int32)], 0)
