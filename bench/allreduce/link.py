"""What a link carries, measured by sockets: every rank sends to the next, all at once."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

_CHUNK = bytes(1 << 18)


def goodput(rank: int, gather: Callable[[Any], list[Any]], seconds: float = 1.0) -> float:
    """Bytes a second that arrive at each rank from the one before, the least of all ranks.

    Args:
      gather: brings every rank's value to all, in rank order.
      seconds: how long each rank sends.
    """
    with socket.create_server(("", 0)) as server:
        own = os.environ.get("HOROVOD_HOSTNAME", "127.0.0.1")
        places = gather((own, server.getsockname()[1]))
        told: list[float] = []
        receiver = threading.Thread(target=lambda: told.append(_receive(server)))
        receiver.start()
        with socket.create_connection(places[(rank + 1) % len(places)]) as link:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                link.sendall(_CHUNK)
        receiver.join()
    return float(min(gather(told[0])))


def _receive(server: socket.socket) -> float:
    connection, _ = server.accept()
    buffer = bytearray(1 << 20)
    with connection:
        received = 0
        begun = time.monotonic()
        while count := connection.recv_into(buffer):
            received += count
    return received / (time.monotonic() - begun)
