"""A module of this checkout as a process of its own that writes its results as lines of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from bench.demo.launch import ROOT

_LOG_LINES = 25


class ChildError(Exception):
    """A child failed or hung; the message carries what it printed last."""


class Child:
    """Runs `python -m ARGUMENTS` from entry to exit of a `with`; what it prints are its answers.

    Args:
      arguments: module and arguments.
      timeout: seconds that an answer may take.
    """

    def __init__(self, arguments: Sequence[str], timeout: float) -> None:
        self._arguments = arguments
        self._timeout = timeout

    def __enter__(self) -> Child:
        self._log = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(
            [sys.executable, "-m", *self._arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()
        self._process.communicate()
        self._log.close()

    def end(self) -> None:
        """At once, as TensorFlow ignores gentler signals; who waits for an answer gets an error."""
        self._process.kill()

    def ask(self, question: Any) -> dict[str, Any]:
        """Sends a line of JSON and returns the answer.

        Raises:
          ChildError: the child ended instead, or did not answer in time.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: the answer is missing, too
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """The next line of JSON that the child writes.

        Raises:
          ChildError: the child ended instead, or did not answer in time.
        """
        assert self._process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(self._timeout, end)
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        if line.endswith("\n"):
            answer: dict[str, Any] = json.loads(line)
            return answer
        status = self._process.wait()
        why = (
            f"no answer within {self._timeout:g} s"
            if late.is_set()
            else f"ended with status {status}"
        )
        self._log.seek(0)
        last = "".join(self._log.readlines()[-_LOG_LINES:])
        raise ChildError(f"python -m {' '.join(self._arguments)}: {why}\n{last}")
