"""One rank of PyTorch's DistributedDataParallel on Gloo, timed as the other methods are.

As a program it takes one argument, JSON: the model and the rounds. It needs PyTorch, and Horovod's
environment variables to know its rank. A step is a backward pass that costs next to nothing, in
which DDP reduces the gradients.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from bench.allreduce.models import MODELS
from bench.allreduce.rows import DDP
from bench.hosts import INTERFACE, address
from bench.ranks import tell

_PORT = 29501
_ONE_BUCKET_MB = 1000  # PowerSGD hangs on Gloo where there are several buckets


class Product(torch.nn.Module):
    """A loss whose gradients are the given ones."""

    def __init__(self, gradients: list[torch.Tensor]) -> None:
        super().__init__()
        self.gradients = gradients
        self.parameters_ = torch.nn.ParameterList(torch.zeros_like(g) for g in gradients)

    def forward(self) -> torch.Tensor:
        pairs = zip(self.parameters_, self.gradients, strict=True)
        return torch.stack([(p * g).sum() for p, g in pairs]).sum()


def compare(model: str, rounds: int) -> dict[str, Any]:
    """Every rank's times and bytes by method; the first of them is verified."""
    rank, size = dist.get_rank(), dist.get_world_size()
    gradients = [
        torch.from_numpy(np.random.default_rng([rank, i]).standard_normal(shape, np.float32))
        for i, shape in enumerate(MODELS[model]())
    ]
    told: dict[str, Any] = {"times": {}, "sent": {}}
    for method in DDP:
        wrapped = _wrap(Product(gradients), method.label)
        _step(wrapped)
        if method is DDP[0]:
            mean = [g.clone() for g in gradients]
            for tensor in mean:
                dist.all_reduce(tensor)
            for parameter, tensor in zip(wrapped.parameters(), mean, strict=True):
                torch.testing.assert_close(parameter.grad, tensor / size)
        for _ in range(3):  # PowerSGD begins after two steps
            _step(wrapped)
        times, sent = zip(*(_timed(wrapped) for _ in range(rounds)), strict=True)
        slowest = torch.tensor(times, dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        mean_sent = torch.tensor(float(np.median(sent)), dtype=torch.float64)
        dist.all_reduce(mean_sent)
        told["times"][method.label] = slowest.tolist()
        told["sent"][method.label] = float(mean_sent) / size
    return told


def _wrap(product: Product, label: str) -> torch.nn.parallel.DistributedDataParallel:
    rank = {"DDP PowerSGD rank 1": 1, "DDP PowerSGD rank 4": 4}.get(label)
    options = {"bucket_cap_mb": _ONE_BUCKET_MB} if rank else {}
    wrapped = torch.nn.parallel.DistributedDataParallel(product, **options)
    if rank:
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=rank, start_powerSGD_iter=2
        )
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif label == "DDP FP16 hook":
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return wrapped


def _step(wrapped: torch.nn.parallel.DistributedDataParallel) -> None:
    wrapped.zero_grad()
    wrapped().backward()


def _timed(wrapped: torch.nn.parallel.DistributedDataParallel) -> tuple[float, int]:
    dist.barrier()
    before, begun = _sent(), time.perf_counter()
    _step(wrapped)
    seconds = time.perf_counter() - begun
    dist.barrier()
    return seconds, _sent() - before


def _sent() -> int:
    return int(Path(f"/sys/class/net/{INTERFACE}/statistics/tx_bytes").read_text())


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{address(0)}:{_PORT}",
        rank=int(os.environ["HOROVOD_RANK"]),
        world_size=int(os.environ["HOROVOD_SIZE"]),
    )
    found = compare(**json.loads(sys.argv[1]))
    if dist.get_rank() == 0:
        tell(found)
    dist.destroy_process_group()
