"""Which rows of a table a step touches, on this rank and on all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gradcomp.bucket import VariableSpec
from gradcomp.collective import Collective

if TYPE_CHECKING:
    import tensorflow as tf


class Rows(NamedTuple):
    """Row numbers, int64, each once, ascending.

    Attributes:
      mine: [n], touched by this rank.
      counts: [ranks], how many each rank touches.
      everyones: [n] of each rank.
      union: [U], touched by any rank.
    """

    mine: tf.Tensor
    counts: tf.Tensor
    everyones: list[tf.Tensor]
    union: tf.Tensor


def sum_duplicates(
    slices: tf.IndexedSlices, variable: VariableSpec, step: Any
) -> tuple[tf.Tensor, tf.Tensor]:
    """The rows of `slices`, int64 [n] ascending, and their sums.

    Args:
      step: int64 scalar, not negative; read from a variable where a graph is traced.

    Returns:
      Sums are float64 where the values are, else float32; [n, *row shape].

    Raises:
      InvalidArgumentError: a row number is negative, or not below the table's number of rows.
    """
    import tensorflow as tf

    # TensorFlow would fold a collective of constants away, and a rank without a gradient has
    # nothing else.
    indices = tf.cast(slices.indices, tf.int64) + tf.minimum(tf.cast(step, tf.int64), 0)
    rows = tf.sort(tf.unique(indices)[0])
    count = variable.shape[0]
    beyond = f"a gradient of {variable.path}, which has {count} rows, has a row beyond"
    tf.debugging.assert_non_negative(rows[:1], message=beyond)
    tf.debugging.assert_less(rows[-1:], tf.constant(count, tf.int64), message=beyond)
    # Summing half-precision values loses what the values still had.
    wide = tf.float64 if slices.values.dtype == tf.float64 else tf.float32
    values = tf.reshape(tf.cast(slices.values, wide), [tf.size(indices), *variable.shape[1:]])
    sums = tf.math.unsorted_segment_sum(values, tf.searchsorted(rows, indices), tf.size(rows))
    return rows, sums


def gather_rows(mine: tf.Tensor, end: int, collective: Collective, name: str) -> Rows:
    """Tells all ranks the rows of each, of a table with rows 0 to `end` − 1."""
    import tensorflow as tf

    # The end of each rank's rows is marked, so that they need not first tell how many there are;
    # and they are sent as bytes, since an engine need not carry each type of integers.
    narrow = _narrowest(end)
    marked = tf.cast(tf.pad(mine, [[0, 1]], constant_values=end), narrow)
    wire = collective.all_gather_rows(tf.bitcast(marked, tf.uint8), name=name)
    everyones = tf.cast(tf.bitcast(wire, narrow), tf.int64)
    ends = tf.ensure_shape(tf.where(tf.equal(everyones, end))[:, 0], [collective.size])
    counts = ends - tf.pad(ends[:-1] + 1, [[1, 0]])
    parts = tf.split(everyones, counts + 1, num=collective.size)
    union = tf.sort(tf.unique(everyones)[0])[:-1]
    return Rows(mine, counts, [part[:-1] for part in parts], union)


def places_of(union: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """int32 [n, 1]: where each of `rows` is in `union`."""
    import tensorflow as tf

    return tf.searchsorted(union, rows)[:, tf.newaxis]


def owners_of(rows: Rows) -> tf.Tensor:
    """int32 [U]: for each row in the union one of the ranks that touched it, evenly."""
    import tensorflow as tf

    ranks = tf.repeat(tf.range(len(rows.everyones)), tf.cast(rows.counts, tf.int32))
    places = tf.searchsorted(rows.union, tf.concat(rows.everyones, 0))
    by_row = tf.gather(ranks, tf.argsort(places, stable=True))
    times = tf.math.bincount(places, minlength=tf.size(rows.union))
    first = tf.cumsum(times, exclusive=True)
    return tf.gather(by_row, first + tf.range(tf.size(times)) % times)


def _narrowest(largest: int) -> Any:
    """The type of integers in which numbers up to `largest` are sent."""
    import tensorflow as tf

    if largest < 1 << 16:
        return tf.uint16
    return tf.int32 if largest < 1 << 31 else tf.int64
