"""States of elastic training: variables, attributes and residuals that belong together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import horovod.tensorflow as hvd
import numpy as np
from horovod.common.elastic import ObjectState

from gradcomp import succession
from gradcomp.horovod.broadcast import allgather_object, broadcast_object, broadcast_variables
from gradcomp.horovod.collective import retire_all
from gradcomp.horovod.elastic.failures import lost_workers
from gradcomp.horovod.functions import unwrap
from gradcomp.optimizer import DistributedOptimizer
from gradcomp.succession import Kept, Line


class _Commit(NamedTuple):
    """All of a rank's state at one time, in host memory."""

    number: int
    values: list[np.ndarray]
    attributes: dict[str, Any]
    residuals: dict[Line, Kept]


class TensorFlowState(ObjectState):
    """Variables, attributes and all residuals of this process, committed and restored together.

    A worker that joins gets the variables and attributes of the others, and starts with empty
    residuals. A worker that stays keeps its own.

    Args:
      variables: TensorFlow or Keras variables, as many and in the same order on all workers.
      session: of Horovod's signature; has no meaning in TensorFlow 2.
      kwargs: become attributes of the state, such as `epoch=0`; equal on all workers after `sync`.
    """

    def __init__(
        self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any
    ) -> None:
        if session is not None:
            raise ValueError("session must be None: TensorFlow 2 has no sessions")
        self.variables = list(variables or ())
        super().__init__(bcast_object=broadcast_object, get_rank=hvd.rank, **kwargs)
        self._synced = False
        self._commits = [self._take(0)]

    def _saved(self) -> list[Any]:
        """The variables that are committed and restored."""
        return self.variables

    def _shared(self) -> list[Any]:
        """Those of them that all workers have in common."""
        return self.variables

    def save(self) -> None:
        """Commits the state to host memory."""
        number = self._commits[-1].number + (1 if self._synced else 0)
        # Another rank may be lost before it has saved, too: then all go back to the one before.
        self._commits = [self._commits[-1], self._take(number)]

    def commit(self) -> None:
        """Saves the state; then raises `HostsUpdatedInterrupt` if hosts were added or removed."""
        self.save()
        self.check_host_updates()
        # All ranks took part in that, so all have saved.
        self._commits = self._commits[-1:]

    def restore(self) -> None:
        """Goes back to the last commit: variables, attributes, residuals and step counters."""
        self._load(self._commits[-1])

    def sync(self) -> None:
        """Makes the state equal on all workers, save for residuals. All of them call it together.

        It is that of the first worker that was there before.
        """
        with lost_workers():
            mine = [commit.number for commit in self._commits] if self._synced else []
            everyones = allgather_object(mine, name="gradcomp.elastic.commits")
            number, root = _agree(everyones)
            own = [commit for commit in self._commits if self._synced and commit.number == number]
            if any(numbers and numbers[-1] != number for numbers in everyones):
                if own:
                    self._load(own[0])
                else:
                    succession.put_back({})
                retire_all()
                self.reset()
            broadcast_variables(self._shared(), root)
            attributes = broadcast_object(self._attributes(), root, name="gradcomp.elastic.state")
            self._set(attributes)
            self._agree_on_gradients()
            self._synced = True
            self._commits = [*own, self._take(number + 1)]

    def _agree_on_gradients(self) -> None:
        """Makes the reducers that can be made before the first step."""

    def _take(self, number: int) -> _Commit:
        values = [np.asarray(unwrap(variable).numpy()) for variable in self._saved()]
        return _Commit(number, values, self._attributes(), succession.take_all())

    def _load(self, commit: _Commit) -> None:
        for variable, value in zip(self._saved(), commit.values, strict=True):
            unwrap(variable).assign(value)
        self._set(commit.attributes)
        succession.put_back(commit.residuals)

    def _attributes(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._saved_state}

    def _set(self, attributes: dict[str, Any]) -> None:
        for name, value in attributes.items():
            setattr(self, name, value)


class TensorFlowKerasState(TensorFlowState):
    """A Keras model, its optimizer, attributes and all residuals, committed and restored together.

    Seeds of dropout are restored, but each worker keeps its own. After a change of workers the
    model's train step is compiled anew.

    Args:
      model: a built Keras model.
      optimizer: by default the one that the model was compiled with; it is built if it is not.
      backend: of Horovod's signature; has no meaning in TensorFlow 2.
      kwargs: become attributes of the state, such as `batch=0, epoch=0`.

    Raises:
      ValueError: the model is not built, or there is no optimizer.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        if not model.built:
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model = model
        self.optimizer: Any = optimizer or getattr(model, "optimizer", None)
        if self.optimizer is None:
            raise ValueError("the model has no optimizer: compile it first, or pass optimizer=")
        if not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)
        self.backend = backend
        super().__init__(**kwargs)

    def _saved(self) -> list[Any]:
        return [*self.model.variables, *self.optimizer.variables]

    def _shared(self) -> list[Any]:
        return [*self.model.weights, *self.optimizer.variables]

    def _agree_on_gradients(self) -> None:
        inner = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        if isinstance(inner, DistributedOptimizer):
            inner.make_reducer_in_service()

    def reset(self) -> None:
        """Has the train step compiled anew, for the ranks that there are now."""
        self.model.train_function = None


class KerasState(TensorFlowKerasState):
    """`TensorFlowKerasState`, with the arguments of Horovod's `KerasState`.

    Args:
      model, optimizer, kwargs: as in `TensorFlowKerasState`.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, **kwargs)


def _agree(everyones: list[list[int]]) -> tuple[int, int]:
    """The commit that all survivors can go back to, and the first rank that has it.

    Args:
      everyones: by rank the numbers of its commits, ascending; none where it is new.
    """
    newest = [numbers[-1] for numbers in everyones if numbers]
    if not newest:
        return 0, 0
    # One that has only a later one joined at a change of workers that failed, and has done nothing.
    number = min(newest)
    return number, next(r for r, numbers in enumerate(everyones) if number in numbers)
