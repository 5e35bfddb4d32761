"""The table of what the layers of a model keep for backward."""

from __future__ import annotations

from dataclasses import dataclass

from gradcomp.codecs import Codec
from gradcomp.plan import as_text


@dataclass(frozen=True)
class PlanRow:
    """A layer: its path, class and codec, and the bytes that it keeps without packing and with."""

    path: str
    kind: str
    codec: Codec | None
    before: int
    after: int


@dataclass(frozen=True)
class ActivationPlan:
    """What is kept for a batch. `print(plan)` shows it as a table, totals last.

    Attributes:
      rows: layers that keep something.
      batch_size: examples.
    """

    rows: tuple[PlanRow, ...]
    batch_size: int

    @property
    def before(self) -> int:
        """Bytes that all layers keep without packing."""
        return sum(row.before for row in self.rows)

    @property
    def after(self) -> int:
        """Bytes that all layers keep."""
        return sum(row.after for row in self.rows)

    def __str__(self) -> str:
        from rich.table import Table

        title = f"Kept for backward by a batch of {self.batch_size}"
        table = Table(title=title, show_footer=True)
        table.add_column("layer", "total", overflow="fold")
        table.add_column("class")
        table.add_column("codec")
        table.add_column("bytes before", f"{self.before:,}", justify="right")
        table.add_column("after", f"{self.after:,}", justify="right")
        table.add_column("÷ before", f"{self._share(self.after, self.before)}", justify="right")
        for row in self.rows:
            spec = "none" if row.codec is None else row.codec.spec
            share = self._share(row.after, row.before)
            table.add_row(row.path, row.kind, spec, f"{row.before:,}", f"{row.after:,}", share)
        return as_text(table).rstrip()

    @staticmethod
    def _share(after: int, before: int) -> str:
        return f"{after / before:.2f}" if before else ""
