"""The few operations that an exchange asks of an engine, and n ranks in one process for tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import tensorflow as tf

T = TypeVar("T")


class Collective(Protocol):
    """What carries the bytes. Every rank calls the same methods in the same order.

    `name` is equal on all ranks and unique within a step. Payloads are uint8 [bytes].
    """

    rank: int
    size: int
    engine: str  # what it is, for people
    in_branches: bool  # whether it can be used in a branch of a graph's condition
    local: int  # ranks that live in this process, and share its cores

    def all_reduce(
        self, tensors: Sequence[tf.Tensor], *, average: bool, name: str
    ) -> list[tf.Tensor]:
        """Sum, or mean, of each tensor over all ranks, in the engine's own arithmetic.

        Shapes are equal on all ranks; they need not be static.
        """
        ...

    def all_gather(self, payload: tf.Tensor, *, sizes: Sequence[int], name: str) -> tf.Tensor:
        """All ranks' payloads in rank order, uint8 [sum(sizes)]; rank r brings `sizes[r]` bytes."""
        ...

    def all_to_all(
        self, payload: tf.Tensor, *, splits: Sequence[int] | tf.Tensor, name: str
    ) -> tf.Tensor:
        """Sends `splits[r]` bytes to rank r; returns what all sent here, in rank order.

        Ranks cut equally, so the result is uint8 [size · splits[rank]]. Where that is not known
        before a step runs, `splits` is an int64 tensor [size].
        """
        ...

    def broadcast(self, payload: tf.Tensor, *, name: str) -> tf.Tensor:
        """Rank 0's payload; the others bring one of the same size, which is not looked at."""
        ...

    def all_gather_rows(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        """All ranks' tensors one after the other in rank order; row counts may differ."""
        ...

    def all_gather_object(self, value: Any, *, name: str) -> list[Any]:
        """The Python object of each rank, in rank order; eager."""
        ...

    def exchange_time(self, payload: int, *, name: str) -> float:
        """Seconds that it takes to gather `payload` bytes of each rank, a multiple of 4; eager."""
        ...


class Meter:
    """A collective that counts the bytes which this rank sends through it.

    `sent` grows while a step is traced or run. A ring sends 2(N−1)/N of an all-reduced tensor and
    N−1 times a gathered payload, and so does rank 0 one that it broadcasts; an all-to-all sends
    everything but the rank's own part.
    """

    def __init__(self, collective: Collective) -> None:
        self._collective = collective
        self.rank = collective.rank
        self.size = collective.size
        self.engine = collective.engine
        self.in_branches = collective.in_branches
        self.local = collective.local
        self.sent: Any = 0  # int, or an int64 tensor once it depends on a step's values

    def all_reduce(
        self, tensors: Sequence[tf.Tensor], *, average: bool, name: str
    ) -> list[tf.Tensor]:
        total = sum(_numel(t) * t.dtype.size for t in tensors)
        self.sent += 2 * (self.size - 1) * total // self.size
        return self._collective.all_reduce(tensors, average=average, name=name)

    def all_gather(self, payload: tf.Tensor, *, sizes: Sequence[int], name: str) -> tf.Tensor:
        self.sent += (self.size - 1) * payload.shape.num_elements()
        return self._collective.all_gather(payload, sizes=sizes, name=name)

    def all_to_all(
        self, payload: tf.Tensor, *, splits: Sequence[int] | tf.Tensor, name: str
    ) -> tf.Tensor:
        self.sent += _numel(payload) - splits[self.rank]
        return self._collective.all_to_all(payload, splits=splits, name=name)

    def broadcast(self, payload: tf.Tensor, *, name: str) -> tf.Tensor:
        if self.rank == 0:
            self.sent += (self.size - 1) * payload.shape.num_elements()
        return self._collective.broadcast(payload, name=name)

    def all_gather_rows(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        import tensorflow as tf

        self.sent += (self.size - 1) * tensor.dtype.size * tf.size(tensor, tf.int64)
        return self._collective.all_gather_rows(tensor, name=name)

    def all_gather_object(self, value: Any, *, name: str) -> list[Any]:
        return self._collective.all_gather_object(value, name=name)

    def exchange_time(self, payload: int, *, name: str) -> float:
        return self._collective.exchange_time(payload, name=name)

    def fork(self) -> Meter:
        """One for a branch of a graph: what it counts has to be returned from the branch."""
        return Meter(self._collective)


def timed(exchange: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    begun = time.perf_counter()
    exchange()
    return time.perf_counter() - begun


def _numel(tensor: tf.Tensor) -> Any:
    """An int, or an int64 tensor where the shape is not static."""
    import tensorflow as tf

    static = tensor.shape.num_elements()
    return tf.size(tensor, tf.int64) if static is None else static


class LocalCollective:
    """`size` ranks in one process, each a thread, on eager tensors.

    Example:
      >>> LocalCollective(3).run(lambda rank: rank.all_gather_object(rank.rank, name="ranks"))
      [[0, 1, 2], [0, 1, 2], [0, 1, 2]]
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def run(self, work: Callable[[LocalRank], T]) -> list[T]:
        """Calls `work(rank)` on every rank at once; returns the results in rank order.

        Raises:
          The first exception that a rank raised of its own; the others are released.
        """
        board = _Board(self.size)
        results: list[Any] = [None] * self.size
        errors: list[BaseException] = []

        def target(rank: int) -> None:
            try:
                results[rank] = work(LocalRank(rank, board))
            except threading.BrokenBarrierError:
                pass
            except BaseException as error:
                errors.append(error)
                board.barrier.abort()

        threads = [threading.Thread(target=target, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results


def alone() -> Collective:
    """The only rank there is."""
    return LocalRank(0, _Board(1))


class _Board:
    """Where local ranks lay their values down for each other."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.slots: list[Any] = [None] * size


class LocalRank:
    """One rank of a `LocalCollective`."""

    in_branches = True
    local = 1

    def __init__(self, rank: int, board: _Board) -> None:
        self.rank = rank
        self.size = len(board.slots)
        self.engine = "one process" if self.size == 1 else f"{self.size} threads"
        self._board = board

    def _share(self, name: str, value: Any) -> list[Any]:
        self._board.slots[self.rank] = (name, value)
        self._board.barrier.wait()
        slots = list(self._board.slots)
        # Nobody may lay down the next value before all have read this one.
        self._board.barrier.wait()
        names = [slot[0] for slot in slots]
        if len(set(names)) != 1:
            raise RuntimeError(f"ranks called different collectives at the same time: {names}")
        return [slot[1] for slot in slots]

    def all_reduce(
        self, tensors: Sequence[tf.Tensor], *, average: bool, name: str
    ) -> list[tf.Tensor]:
        contributions = self._share(name, list(tensors))
        sums = contributions[0]
        for tensors in contributions[1:]:
            sums = [a + b for a, b in zip(sums, tensors, strict=True)]
        return [s / self.size for s in sums] if average else sums

    def all_gather(self, payload: tf.Tensor, *, sizes: Sequence[int], name: str) -> tf.Tensor:
        import tensorflow as tf

        if payload.shape != (sizes[self.rank],):
            raise ValueError(f"{name}: expected {sizes[self.rank]} bytes, got {payload.shape}")
        return tf.concat(self._share(name, payload), 0)

    def all_to_all(
        self, payload: tf.Tensor, *, splits: Sequence[int] | tf.Tensor, name: str
    ) -> tf.Tensor:
        import tensorflow as tf

        parts = self._share(name, tf.split(payload, splits, num=self.size))
        return tf.concat([part[self.rank] for part in parts], 0)

    def broadcast(self, payload: tf.Tensor, *, name: str) -> tf.Tensor:
        return self._share(name, payload)[0]

    def all_gather_rows(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        import tensorflow as tf

        return tf.concat(self._share(name, tensor), 0)

    def all_gather_object(self, value: Any, *, name: str) -> list[Any]:
        return self._share(name, value)

    def exchange_time(self, payload: int, *, name: str) -> float:
        content = bytes(payload)
        return timed(lambda: b"".join(self._share(name, content)))
