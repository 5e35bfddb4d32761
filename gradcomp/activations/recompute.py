"""Calls with state that backward runs again from their packed inputs.

The second run reads the values that weights and states had in the first: dropout draws the same
mask, and what the call assigns (seeds, the statistics of batch normalization) is assigned once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend

from gradcomp.activations.gradient import here, with_gradient
from gradcomp.activations.keep import first_only, keep
from gradcomp.activations.mode import Notes, first_run, plain, repeated, second_run
from gradcomp.activations.pack import gate, to_nearest
from gradcomp.codecs import Codec
from gradcomp.errors import ActivationError


class Scope(keras.StatelessScope):
    """Gives variables the values of a mapping, and collects what is assigned to any."""

    def __init__(self, mapping: Sequence[tuple[Any, Any]]) -> None:
        super().__init__(state_mapping=mapping, collect_losses=True)
        self.assigned: list[Any] = []

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, _ = update
        if not any(known is variable for known in self.assigned):
            self.assigned.append(variable)
        super().add_update(update)


@dataclass(frozen=True)
class Call:
    """A call that is to be run twice.

    Attributes:
      function: what is called with `args` and `kwargs` each time.
      name: of the layer or function, for errors.
      trainable, states: the variables that it owns; it may assign the states. Other trainable
        variables that it reads are found.
      add_loss: takes the losses that the call adds.
    """

    function: Callable[..., Any]
    name: str
    trainable: Sequence[Any] = ()
    states: Sequence[Any] = ()
    add_loss: Callable[[Any], None] | None = None


def layer_call(layer: Any, function: Callable[..., Any]) -> Call:
    """The call of a layer by `function`: its `call`, or itself."""
    return Call(
        function,
        f"layer {layer.name!r} ({type(layer).__name__})",
        layer.trainable_variables,
        layer.non_trainable_variables,
        layer.add_loss,
    )


@tf.autograph.experimental.do_not_convert
def recompute(call: Call, codec: Codec | None, args: Any, kwargs: Any) -> Any:
    """What the call returns; backward runs it again on what `codec` keeps of its tensors.

    Args:
      call: what to run.
      codec: None if the call is linear in its one float tensor: then nothing is kept, and the
        second run is on the gradient.
    Raises:
      ActivationError: the call assigns a variable that is trainable, or not its own; names both.
    """
    if repeated():
        return call.function(*args, **kwargs)
    return _Twice(call, codec, args, kwargs).run()


def to_the_bit(codec: Codec | None) -> bool:
    """Whether gradients are to be those without packing, to the last bit.

    TensorFlow's own are then taken of a plain second run: formulas add up in another order. In
    graphs its optimizer reorders both.
    """
    return codec is not None and codec.lossless and tf.executing_eagerly()


def read(variable: Any) -> Any:
    """A variable's value as it is stored, whatever dtype layers compute in."""
    with backend.AutocastScope(None):
        return tf.convert_to_tensor(variable.value)


class _Twice:
    def __init__(self, call: Call, codec: Codec | None, args: Any, kwargs: Any) -> None:
        self._call, self._codec = call, codec
        self._structure = (args, kwargs)
        leaves = tf.nest.flatten(self._structure)
        # Each once: of a tensor given twice TensorFlow has one gradient.
        tensors = list({id(leaf): leaf for leaf in leaves if tf.is_tensor(leaf)}.values())
        # It takes the gradient of floats alone.
        self._floats = [x for x in tensors if x.dtype.is_floating]
        self._others = [x for x in tensors if not x.dtype.is_floating]
        self._masks = [getattr(x, "_keras_mask", None) for x in self._floats]
        numbers = {id(x): i for i, x in enumerate((*self._floats, *self._others))}
        self._places = [numbers.get(id(leaf)) for leaf in leaves]
        self._constants = [None if id(leaf) in numbers else leaf for leaf in leaves]
        scope = backend.get_autocast_scope()
        self._autocast = None if scope is None else scope.dtype

    def run(self) -> Any:
        """The first run, its gradient, and what it assigns."""
        call = self._call
        floats = self._floats
        # What follows is not linear in these: at random they would be no better in the mean.
        codec = None if self._codec is None else to_nearest(self._codec)
        kept = [] if codec is None else [keep(x, codec) for x in floats]
        results: list[_Results] = []

        def twice(*tensors: Any) -> Any:
            with first_run() as notes:
                first = self._run_once(tensors)
            results.append(first)
            given = tensors[len(floats) :]  # the inputs themselves must not live on

            def gradient(*upstream: Any, variables: Sequence[Any] = ()) -> Any:
                wanted = first.differentiable(upstream)
                with gate(wanted):
                    if self._codec is None:
                        with second_run(notes):
                            grads = [*self._run_once((*wanted, *given)).outputs]
                        return grads + [None] * len(given)
                    again = [get(wanted) for get in kept]
                    grads, of_variables = self._gradients(again, given, wanted, notes, variables)
                grads = [first_only(gradient) for gradient in grads]
                of_variables = [first_only(gradient) for gradient in of_variables]
                return (grads, of_variables) if variables else grads

            return first.tensors(), gradient

        lasting = [*self._others, *map(read, call.trainable), *map(read, call.states)]
        made = tf.nest.flatten(with_gradient(twice, floats, lasting))
        first = results[-1]
        outputs, losses, values = first.split(made)
        for variable, value in zip(first.assigned, values, strict=True):
            variable.assign(value)
        for loss in losses:
            if call.add_loss is not None:
                call.add_loss(loss)
        return first.structured(outputs)

    def _gradients(
        self,
        again: list[Any],
        given: Sequence[Any],
        upstream: list[Any],
        notes: Notes,
        variables: Sequence[Any],
    ) -> tuple[list[Any], list[Any]]:
        count, given = len(self._others), [here(tensor) for tensor in given]
        others, weights = given[:count], given[count : count + len(self._call.trainable)]
        states = given[count + len(weights) :]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([*again, *weights, *variables])
            for x, mask in zip(again, self._masks, strict=True):
                if mask is not None:
                    x._keras_mask = mask
            with plain() if to_the_bit(self._codec) else second_run(notes):
                second = self._run_once((*again, *others, *weights, *states))
        sources = [*again, *weights, *variables]
        grads = tape.gradient(second.float_tensors(), sources, upstream)
        of_inputs, rest = grads[: len(again)], grads[len(again) :]
        of_weights, of_variables = rest[: len(weights)], rest[len(weights) :]
        nothing = [None] * len(others), [None] * len(states)
        return [*of_inputs, *nothing[0], *of_weights, *nothing[1]], of_variables

    def _run_once(self, tensors: Sequence[Any]) -> _Results:
        call, count = self._call, len(self._floats) + len(self._others)
        pairs = zip(self._constants, self._places, strict=True)
        leaves = [leaf if i is None else tensors[i] for leaf, i in pairs]
        args, kwargs = tf.nest.pack_sequence_as(self._structure, leaves)
        variables = [*call.trainable, *call.states]
        mapping = list(zip(variables, tensors[count:], strict=True))
        with Scope(mapping) as scope, backend.AutocastScope(self._autocast):
            outputs = call.function(*args, **kwargs)
        for variable in scope.assigned:
            if variable.trainable:
                raise ActivationError(
                    f"{call.name} can't be packed: it assigns its trainable variable "
                    f"{variable.path!r} when it is called, and a second run in backward would "
                    "compute from another value. Leave this layer as it is, or freeze the variable"
                )
            if not any(variable is known for known in call.states):
                raise ActivationError(
                    f"{call.name} can't be packed: it assigns {variable.path!r}, which is not its "
                    "own, as what draws random numbers does. Pack the layer that owns it, or pass "
                    "seeds as tensors"
                )
        values = [scope.get_current_value(variable) for variable in scope.assigned]
        return _Results(outputs, list(scope.losses), scope.assigned, values)


@dataclass(frozen=True)
class _Results:
    """What one run made: outputs of any structure, losses, and what it would assign."""

    structure: Any
    losses: list[Any]
    assigned: list[Any]
    values: list[Any]

    @property
    def outputs(self) -> list[Any]:
        """The tensors among the outputs."""
        return [leaf for leaf in tf.nest.flatten(self.structure) if tf.is_tensor(leaf)]

    def tensors(self) -> list[Any]:
        """All tensors of the run, in one order."""
        return [*self.outputs, *self.losses, *self.values]

    def float_tensors(self) -> list[Any]:
        """Those with a gradient: float outputs, and losses."""
        return [t for t in (*self.outputs, *self.losses) if t.dtype.is_floating]

    def differentiable(self, upstream: Sequence[Any]) -> list[Any]:
        """Of gradients, one for each of `tensors`, those of `float_tensors`."""
        pairs = zip((*self.outputs, *self.losses), upstream, strict=False)
        return [gradient for tensor, gradient in pairs if tensor.dtype.is_floating]

    def split(self, tensors: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Outputs, losses and assigned values among copies of `tensors`."""
        a = len(self.outputs)
        b = a + len(self.losses)
        return tensors[:a], tensors[a:b], tensors[b:]

    def structured(self, outputs: list[Any]) -> Any:
        """Copies of the outputs in their structure, with the masks of these."""
        left = iter(outputs)
        leaves = []
        for leaf in tf.nest.flatten(self.structure):
            if tf.is_tensor(leaf):
                mask, leaf = getattr(leaf, "_keras_mask", None), next(left)
                if mask is not None:
                    leaf._keras_mask = mask
            leaves.append(leaf)
        return tf.nest.pack_sequence_as(self.structure, leaves)
