"""The exceptions that gradcomp raises on purpose; each message names the value and the remedy."""


class GradcompError(Exception):
    """Base of every error below."""

    # AutoGraph raises an error of a traced function again as the same class only with this one.
    __init__ = Exception.__init__


class CodecError(GradcompError, ValueError):
    """A codec was given an option, an input or a payload that it cannot take."""


class MismatchError(GradcompError, RuntimeError):
    """Ranks disagree about what is to be exchanged; the same message is raised on all of them."""


class StateError(GradcompError, RuntimeError):
    """Saved state is damaged or belongs to something else, or it could not be written."""


class OutOfSyncError(GradcompError, RuntimeError):
    """Ranks have different weights; the same message is raised on all of them."""


class WorkerLostError(GradcompError, RuntimeError):
    """Another worker has died; this process must be ended too, and all of them started again."""


class MissingDependencyError(GradcompError, ImportError):
    """TensorFlow or Horovod is missing, or of an unsupported version; says what to type."""


class BatchSizeError(GradcompError, RuntimeError):
    """No batch size fits into memory, or trying one failed for another reason."""


class ModelError(GradcompError, ValueError):
    """A model is not known by that name, or its file is missing or does not load."""


class ActivationError(GradcompError, ValueError):
    """A layer's activations can't be packed; names the layer and the reason."""
