"""What is known of Keras's layers: what their gradients need, one kind of layer a file.

A formula is called in the place of a layer's `call`, with the layer, that `call`, the codec, and
the arguments of the call.
"""

from typing import Any

from gradcomp.activations.formulas import dropout, elementwise, linear, merging, norm, pooling
from gradcomp.activations.formulas.attention import attention

__all__ = ["FORMULAS", "attention"]

FORMULAS: dict[Any, Any] = {
    **linear.FORMULAS,
    **norm.FORMULAS,
    **elementwise.FORMULAS,
    **dropout.FORMULAS,
    **merging.FORMULAS,
    **pooling.FORMULAS,
}
