"""Books of an optimizer under a strategy: what came in, what was applied, and what waits.

Over the steps the gradients of a variable add up to what an SGD of rate 1 has taken off it and what
waits in its residuals: else one was lost, sent twice, or given to another variable. The variables
have one shape, so that nothing else would tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

SHAPE = (40, 30)
MakeOptimizer = Callable[[], Any]
# Of an optimizer, for each replica its residuals by the variable's index.
Residuals = Callable[[Any], list[dict[int, tf.Variable]]]


class Books:
    """Variables with what their gradients add up to, and an optimizer that is applied to them.

    Args:
      opt: is built for these variables if it isn't yet.
      first: place of the first variable among those of the optimizer.
    """

    def __init__(
        self, strategy: Any, opt: Any, residuals: Residuals, names: str, first: int = 0
    ) -> None:
        self.strategy, self.opt, self.residuals, self.first = strategy, opt, residuals, first
        with strategy.scope():
            self.variables = [keras.Variable(tf.zeros(SHAPE), name=name) for name in names]
        self.sums = [np.zeros(SHAPE) for _ in names]
        self.traces = 0
        self._random = np.random.default_rng(sum(map(ord, names)))
        self._step = tf.function(self._trace)

    def build(self, *others: Books) -> Books:
        with self.strategy.scope():
            self.opt.build([v for books in (self, *others) for v in books.variables])
        return self

    def step(
        self, rows: int = 4, used: Sequence[int] | None = None, passed: Sequence[int] | None = None
    ) -> None:
        """One step, whose gradients are means over `rows` rows.

        Args:
          used: places of the variables that have a gradient; all by default.
          passed: places of those that the optimizer is told of; all by default.
        """
        used = tuple(range(len(self.variables)) if used is None else used)
        passed = tuple(range(len(self.variables)) if passed is None else passed)
        replicas = self.strategy.num_replicas_in_sync
        x = self._random.standard_normal((replicas, rows, len(self.variables), *SHAPE))
        x = (x + np.arange(len(self.variables)).reshape(-1, 1, 1)).astype(np.float32)
        values = self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(x[context.replica_id_in_sync_group])
        )
        self._step(values, used, passed)
        for place in set(used) & set(passed):
            self.sums[place] += x[:, :, place].mean(1, dtype=np.float64).sum(0)

    def balance(self) -> None:
        """Fails unless nothing was lost, sent twice or given to another variable."""
        for place, (variable, total) in enumerate(zip(self.variables, self.sums, strict=True)):
            copies = [copy.numpy() for copy in variable.value.values]
            assert all(np.array_equal(copies[0], copy) for copy in copies)
            waiting = self.waiting(place)
            assert waiting.any()
            np.testing.assert_allclose(waiting - copies[0], total, atol=2e-4)

    def waiting(self, place: int) -> np.ndarray:
        """What the residuals of all replicas add up to."""
        index = self.first + place
        replicas = self.residuals(self.opt)
        return sum((kept[index].numpy().astype(np.float64) for kept in replicas), np.zeros(SHAPE))

    def _trace(self, x: Any, used: tuple[int, ...], passed: tuple[int, ...]) -> None:
        self.traces += 1

        def one(x: tf.Tensor) -> None:
            means = tf.reduce_mean(x, 0)
            told = [self.variables[place] for place in passed]
            gradients = [means[place] if place in used else None for place in passed]
            self.opt.apply(gradients, told)

        self.strategy.run(one, args=(x,))


def steps_are_traced_again_and_again(strategy: Any, opt: MakeOptimizer, kept: Residuals) -> None:
    """With other batch sizes, back and forth."""
    books = Books(strategy, opt(), kept, "abc").build()
    for rows in (4, 6, 4, 2, 6):
        books.step(rows)
        books.balance()
    assert books.traces >= 3


def gradients_are_missing_at_times(strategy: Any, opt: MakeOptimizer, kept: Residuals) -> None:
    books = Books(strategy, opt(), kept, "abc").build()
    for used in ((0, 1, 2), (0, 2), (1,), (0, 1, 2)):
        before = [books.waiting(place) for place in range(3)]
        books.step(used=used)
        books.balance()
        for place in range(3):
            same = np.array_equal(before[place], books.waiting(place))
            assert same == (place not in used)


def layers_are_frozen_and_not(strategy: Any, opt: MakeOptimizer, kept: Residuals) -> None:
    """Keras hands over the trainable variables only."""
    books = Books(strategy, opt(), kept, "abc").build()
    for passed in ((0, 1, 2), (0, 2), (0, 1, 2)):
        before = [books.waiting(place) for place in range(3)]
        books.step(used=passed, passed=passed)
        books.balance()
        for place in set(range(3)) - set(passed):
            assert np.array_equal(before[place], books.waiting(place))


def two_models_take_turns(strategy: Any, opt: MakeOptimizer, kept: Residuals) -> None:
    """Each with an optimizer of its own."""
    first = Books(strategy, opt(), kept, "abc").build()
    second = Books(strategy, opt(), kept, "de").build()
    first.step()
    for books in (second, second, first, second):
        books.step()
        first.balance()
        second.balance()


def an_optimizer_is_shared_by_two_models(
    strategy: Any, opt: MakeOptimizer, kept: Residuals
) -> None:
    """It has to be built with the variables of both; of others it knows nothing, as in Keras."""
    shared = opt()
    first = Books(strategy, shared, kept, "ab")
    second = Books(strategy, shared, kept, "cd", first=2)
    first.build(second)
    for books in (first, second, first, second, second):
        books.step()
    for books in (first, second):
        books.balance()
    stranger = Books(strategy, shared, kept, "xy")
    before = [books.waiting(place) for books in (first, second) for place in range(2)]
    try:
        stranger.step()
    except ValueError as error:
        assert "Unknown variable" in str(error)
    else:
        raise AssertionError("variables were taken that the optimizer was not built with")
    after = [books.waiting(place) for books in (first, second) for place in range(2)]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    for books in (first, second):
        books.step()
        books.balance()


ALL = (
    steps_are_traced_again_and_again,
    gradients_are_missing_at_times,
    layers_are_frozen_and_not,
    two_models_take_turns,
    an_optimizer_is_shared_by_two_models,
)
