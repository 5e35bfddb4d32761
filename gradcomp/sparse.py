"""How slices are reduced over all ranks: gradients of a table of which a step touches some rows.

Duplicate rows are summed first. Row numbers are gathered as they are, so that every rank knows who
touched what; then values travel in the cheaper of two forms:

gathered   every rank encodes its own rows, as many as they are; all decode and sum all payloads
dense      a float32 all-reduce of the rows that any rank touched, zeros where a rank has none

Either way the sum is of one row for each row touched, ascending. A residual is a whole table: its
rows are sent with a gradient for them, and wait meanwhile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from gradcomp.bucket import VariableSpec, sent_bytes
from gradcomp.codecs.base import Codec
from gradcomp.collective import Meter
from gradcomp.exchange import Randomness

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


class _Rows(NamedTuple):
    """Which rows of the table are touched.

    Attributes:
      mine: int64 [n], ascending, as all are.
      counts: int64 [ranks].
      everyones: int64 [n] of each rank.
      union: int64 [U], touched by any rank.
    """

    mine: tf.Tensor
    counts: tf.Tensor
    everyones: list[tf.Tensor]
    union: tf.Tensor


@dataclass(frozen=True)
class SparseExchange:
    """How the slices of one variable are reduced over all ranks.

    Attributes:
      codec: of the rows' values; None sends them as float32, or float64 where they are.
      average: mean over ranks if True, else sum.
      name: prefix of the collectives' names; equal on all ranks, unique within a step.
    """

    variable: VariableSpec
    codec: Codec | None
    collective: Meter
    randomness: Randomness
    average: bool
    name: str

    def __call__(self, slices: tf.IndexedSlices, residual: tf.Variable | None) -> ReducedRows:
        """Reduces one rank's slices, of any number of rows.

        Args:
          slices: rows in any order, also several times; on some ranks there may be none.
          residual: float32 of the table's shape; only the touched rows are read.
        """
        import tensorflow as tf

        mine, values = self._sum_duplicates(slices)
        rows = self._gather_rows(mine)
        old = None if residual is None else tf.gather(residual, mine)
        if self._may_be_dense:
            total, new, sent = tf.cond(
                self._is_dense_cheaper(rows),
                lambda: self._dense(rows, values, old),
                lambda: self._gathered(rows, values, old),
            )
        else:
            total, new, sent = self._gathered(rows, values, old)
        self.collective.sent += sent
        if self.average:
            total *= 1.0 / self.collective.size
        total = tf.cast(total, slices.values.dtype)
        finite = tf.reduce_all(tf.math.is_finite(total))
        shape = tf.constant(self.variable.shape, tf.int64)
        return ReducedRows(
            tf.IndexedSlices(total, rows.union, shape),
            finite,
            None if residual is None else tf.IndexedSlices(new, mine, shape),
        )

    @property
    def _row_shape(self) -> tuple[int, ...]:
        return self.variable.shape[1:]

    @property
    def _row_numel(self) -> int:
        return math.prod(self._row_shape)

    def _sum_duplicates(self, slices: tf.IndexedSlices) -> tuple[tf.Tensor, tf.Tensor]:
        """(int64 [n] ascending, wide [n, *row shape])."""
        import tensorflow as tf

        # Of the step, a variable: TensorFlow would fold collectives of constants away, and a rank
        # without a gradient has nothing but constants.
        zero = tf.minimum(tf.cast(self.randomness.step, tf.int64), 0)
        indices = tf.cast(slices.indices, tf.int64) + zero
        rows = tf.sort(tf.unique(indices)[0])
        # Summing half-precision values loses what the values still had.
        wide = tf.float64 if slices.values.dtype == tf.float64 else tf.float32
        values = tf.reshape(tf.cast(slices.values, wide), [tf.size(indices), *self._row_shape])
        sums = tf.math.unsorted_segment_sum(values, tf.searchsorted(rows, indices), tf.size(rows))
        return rows, sums

    def _gather_rows(self, mine: tf.Tensor) -> _Rows:
        import tensorflow as tf

        size = self.collective.size
        counts = self.collective.all_gather_rows(
            tf.reshape(tf.size(mine, tf.int64), [1]), name=f"{self.name}.counts"
        )
        counts = tf.ensure_shape(counts, [size])
        # As bytes: an engine need not carry each type of integers.
        narrow = _narrowest(self.variable.shape[0])
        wire = self.collective.all_gather_rows(
            tf.bitcast(tf.cast(mine, narrow), tf.uint8), name=f"{self.name}.rows"
        )
        everyones = tf.cast(tf.bitcast(wire, narrow), tf.int64)
        union = tf.sort(tf.unique(everyones)[0])
        return _Rows(mine, counts, tf.split(everyones, counts, num=size), union)

    @property
    def _bytes_a_row(self) -> tuple[float, float]:
        """What a row costs in all, gathered from one rank and dense."""
        size, itemsize = self.collective.size, 8 if self.variable.dtype == "float64" else 4
        raw = itemsize * self._row_numel
        # Of many elements, so that what is rounded up does not count.
        many = 1 << 20
        payload = itemsize * many if self.codec is None else self.codec.payload_size(many)
        gathered = (size - 1) * payload / many * self._row_numel
        return gathered, float(size * sent_bytes("dense", size, raw, raw))

    @property
    def _may_be_dense(self) -> bool:
        """Whether it would be cheaper if all ranks touched the same rows."""
        gathered, dense = self._bytes_a_row
        return dense < gathered * self.collective.size

    def _is_dense_cheaper(self, rows: _Rows) -> tf.Tensor:
        """Bool scalar, equal on all ranks."""
        import tensorflow as tf

        gathered, dense = self._bytes_a_row
        total = tf.cast(tf.reduce_sum(rows.counts), tf.float64)
        return dense * tf.cast(tf.size(rows.union), tf.float64) < gathered * total

    def _dense(
        self, rows: _Rows, values: tf.Tensor, old: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """(sum over ranks [U, *row shape], new residual's rows, bytes sent)."""
        import tensorflow as tf

        collective = self.collective.fork()
        corrected = values if old is None else values + old
        table = tf.scatter_nd(_places(rows.union, rows.mine), corrected, self._shape_of(rows.union))
        (total,) = collective.all_reduce([table], average=False, name=f"{self.name}.all_reduce")
        return total, tf.zeros_like(values), tf.cast(collective.sent, tf.int64)

    def _gathered(
        self, rows: _Rows, values: tf.Tensor, old: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """(sum over ranks [U, *row shape], new residual's rows, bytes sent)."""
        import tensorflow as tf

        collective = self.collective.fork()
        if self.codec is None:
            new = None
            wire = collective.all_gather_rows(values, name=f"{self.name}.values")
            everyones = tf.split(wire, rows.counts, num=collective.size)
        else:
            table = self._segments(self.codec, rows.counts)
            payload, new = self.codec.encode_bucket(
                [values],
                None if old is None else [old],
                # The rank's own row of the table, of which it is then the only tensor.
                table[collective.rank : collective.rank + 1] * [0, 1, 1, 1, 1],
                self.randomness.key(collective.rank, phase=0),
            )
            payloads = collective.all_gather_rows(payload, name=f"{self.name}.payloads")
            shapes = [(count, *self._row_shape) for count in tf.unstack(rows.counts)]
            everyones, _ = self.codec.decode_bucket(
                payloads, 1, table, 1.0, shapes, ["float32"] * collective.size
            )
        # One rank after the other: in rank order everywhere, also where a scatter is not ordered.
        total = tf.zeros(self._shape_of(rows.union), values.dtype)
        for theirs, decoded in zip(rows.everyones, everyones, strict=True):
            total = tf.tensor_scatter_nd_add(total, _places(rows.union, theirs), decoded)
        left = tf.zeros_like(values) if new is None else new[0]
        return total, left, tf.cast(collective.sent, tf.int64)

    def _segments(self, codec: Codec, counts: tf.Tensor) -> tf.Tensor:
        """int64 [ranks, 5]: each rank's rows as one segment of a tensor of its own."""
        import tensorflow as tf

        lengths = counts * self._row_numel
        nothing = tf.zeros_like(lengths)
        columns = (
            tf.range(self.collective.size, dtype=tf.int64),
            nothing,
            lengths,
            nothing + tf.cast(codec.kept(lengths), tf.int64),
            nothing + self.variable.index,
        )
        return tf.stack(columns, axis=1)

    def _shape_of(self, rows: tf.Tensor) -> tf.Tensor:
        import tensorflow as tf

        return tf.concat([tf.shape(rows), tf.constant(self._row_shape, tf.int32)], 0)


def _places(union: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """int32 [n, 1]: where each of `rows` is in `union`."""
    import tensorflow as tf

    return tf.searchsorted(union, rows)[:, tf.newaxis]


def _narrowest(count: int) -> Any:
    """The type of integers in which numbers below `count` are sent."""
    import tensorflow as tf

    if count <= 1 << 16:
        return tf.uint16
    return tf.int32 if count <= 1 << 31 else tf.int64
