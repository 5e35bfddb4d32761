"""Groups of ranks: Horovod's process sets, and the hosts on which ranks run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
from horovod.common.process_sets import _temp_process_set_object
from horovod.tensorflow.mpi_ops import _basics

from gradcomp.hierarchy import Ranks


def process_set_of(ranks: Sequence[int]) -> Any:
    """Horovod's process set of exactly these ranks; None where there is none.

    Asked anew each time: sets don't outlive `hvd.shutdown()`, and a saved model names ranks only.
    """
    for number, members in _basics._get_process_set_ids_and_ranks().items():
        if list(members) == sorted(ranks):
            found = _temp_process_set_object(number)
            found.ranks = list(members)
            return found
    return None


def known_process_set(ranks: Ranks | None) -> Any:
    """The process set of these ranks, or the global one for None.

    Raises:
      ValueError: Horovod has none.
    """
    found = hvd.global_process_set if ranks is None else process_set_of(ranks)
    if found is None:
        raise ValueError(
            f"gradients are to be exchanged among ranks {list(ranks or ())}, and Horovod has no "
            f"process set of them: call hvd.init(process_sets=[hvd.ProcessSet({list(ranks or ())})"
            "]) before the model is loaded or built"
        )
    return found


def ranks_by_host(places: Sequence[tuple[int, int, int]]) -> list[Ranks]:
    """The ranks of each host in ascending order; hosts in the order of their lowest rank.

    Host names would not do: containers share them.

    Args:
      places: (local rank, local size, cross rank) of each rank, as Horovod numbers them: ranks on a
        host, and for each local rank the hosts that have it.

    Raises:
      RuntimeError: the numbers belong to no arrangement of hosts.
    """
    sizes = [size for _, size in sorted((cross, s) for local, s, cross in places if local == 0)]
    hosts: list[list[int]] = [[] for _ in sizes]
    for rank, (local, size, cross) in enumerate(places):
        having = [host for host, host_size in enumerate(sizes) if host_size > local]
        if cross >= len(having) or sizes[having[cross]] != size:
            raise RuntimeError(
                f"hierarchical=True can't tell which ranks share a host: rank {rank} says that it "
                f"is local rank {local} of {size} and cross rank {cross}, and no host fits that; "
                "launch with horovodrun or mpirun, which number ranks host by host"
            )
        hosts[having[cross]].append(rank)
    return sorted(tuple(host) for host in hosts)


def add_process_sets(groups: Sequence[Ranks]) -> None:
    """Makes sure that Horovod has a process set for each group of several ranks.

    All ranks call it with the same groups.

    Raises:
      RuntimeError: Horovod was not told that sets may be added.
    """
    missing = [g for g in groups if len(g) > 1 and process_set_of(g) is None]
    for group in missing:
        try:
            hvd.add_process_set(group)
        except ValueError as error:
            sets = ", ".join(f"hvd.ProcessSet({list(g)})" for g in missing)
            raise RuntimeError(
                "hierarchical=True needs a process set for each host and one for their first "
                'ranks: call hvd.init(process_sets="dynamic") in place of hvd.init(), so that they '
                f"can be added, or hvd.init(process_sets=[{sets}]) (Horovod says: {error})"
            ) from error
