"""`hvd.elastic.run`: calls a training function again whenever the workers have changed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd
from horovod.common.elastic import run_fn
from horovod.common.exceptions import HostsUpdatedInterrupt

from gradcomp.horovod.collective import retire_all
from gradcomp.horovod.elastic.failures import lost_workers
from gradcomp.horovod.functions import init


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function that trains; it is called again whenever workers have come or gone.

    Before each call the state is made equal on all workers. When a worker is lost, the others go
    back to the last commit. When hosts were added or removed, nothing is rolled back.

    No gradient may be exchanged, and nothing broadcast, before the function is called: a worker
    that joins would wait there, while the others wait for it in the function.

    Args:
      func: takes the state, one of `hvd.elastic`'s, and further arguments.

    Returns:
      A function with the same arguments, which returns what `func` returns.
    """

    @functools.wraps(func)
    def guarded(state: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            with lost_workers():
                return func(state, *args, **kwargs)
        except HostsUpdatedInterrupt:
            # It may come long after a commit. Nothing has failed, so all of it is kept; and all
            # ranks synchronize, since one may have joined where Horovod saw one removed only.
            state.save()
            raise HostsUpdatedInterrupt(skip_sync=False) from None

    return run_fn(guarded, _reset)


def _reset() -> None:
    hvd.shutdown()
    init()
    retire_all()
