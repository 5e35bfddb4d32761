"""The plan: for each variable its codec, its bytes and its route; fixed before the first step."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from gradcomp.bucket import (
    DEFAULT_BUCKET_BYTES,
    Bucket,
    VariableSpec,
    make_alternatives,
    make_buckets,
    make_stages,
    sent_bytes,
)

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Plan:
    """What will be sent. `print(plan)` shows it as a table, totals last.

    Attributes:
      variables: in the order of the model.
      world_size: ranks that exchange gradients.
      bucket_bytes: raw bytes after which a bucket is full.
      momentum: each variable has a velocity too, see `gradcomp.momentum`.
      hosts: ranks on each host, where gradients are summed within hosts and only leaders, one a
        host, exchange them; None where all ranks exchange.
      leads: whether this rank exchanges, and keeps residuals.
      chosen: by bucket, which of its `alternatives` is taken; empty where no `Auto` has chosen yet,
        whose buckets then count as uncompressed.
    """

    variables: tuple[VariableSpec, ...]
    world_size: int
    bucket_bytes: int = DEFAULT_BUCKET_BYTES
    momentum: bool = False
    hosts: tuple[int, ...] | None = None
    leads: bool = True
    chosen: tuple[int, ...] = ()

    @property
    def exchanging(self) -> int:
        """Ranks that exchange encoded gradients: all, or one a host."""
        return self.world_size if self.hosts is None else len(self.hosts)

    @cached_property
    def layouts(self) -> tuple[Bucket, ...]:
        """The buckets as their residuals are laid out, whatever an `Auto` chooses."""
        return make_buckets(self.variables, self.exchanging, self.bucket_bytes)

    @cached_property
    def alternatives(self) -> tuple[tuple[Bucket, ...], ...]:
        """For each bucket all ways to exchange it: one, or those among which an `Auto` chooses."""
        return tuple(make_alternatives(bucket, self.exchanging) for bucket in self.layouts)

    @property
    def decides(self) -> bool:
        """Whether there is an `Auto` that chooses, or has chosen."""
        return any(v.codec is not None and v.codec.decides for v in self.variables)

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """The buckets as they are exchanged."""
        chosen = self.chosen or (0,) * len(self.layouts)
        return tuple(a[number] for a, number in zip(self.alternatives, chosen, strict=True))

    @property
    def warmup_epochs(self) -> int:
        """Epochs before every variable has the codec that it keeps."""
        return max((len(v.warmup) for v in self.variables), default=0)

    @cached_property
    def stages(self) -> tuple[tuple[Bucket, ...], ...]:
        """For each bucket what it is in each epoch of a warm-up, and then for good."""
        stages = (make_stages(bucket, self.exchanging) for bucket in self.buckets)
        missing = self.warmup_epochs + 1
        return tuple((*found, *found[-1:] * (missing - len(found))) for found in stages)

    @property
    def stage_bytes(self) -> tuple[int, ...]:
        """Bytes that a rank sends in one step in each epoch of a warm-up, and then for good."""
        return tuple(map(self._sent_by, zip(*self.stages, strict=True)))

    @property
    def raw_bytes(self) -> int:
        """Bytes of all gradients, uncompressed."""
        return sum(v.raw_bytes for v in self.variables)

    @property
    def payload_bytes(self) -> int:
        """Bytes of all gradients as they are encoded."""
        return sum(bucket.payload_bytes for bucket in self.buckets)

    @property
    def sent_bytes(self) -> int:
        """Bytes that an exchanging rank sends in one step, on average over those."""
        return self._sent_by(self.buckets)

    def _sent_by(self, buckets: Iterable[Bucket]) -> int:
        return sum(
            sent_bytes(b.route, self.exchanging, b.raw_bytes, b.payload_bytes) for b in buckets
        )

    @property
    def dense_bytes(self) -> int:
        """Bytes that an exchanging rank would send in one step without compression."""
        return sent_bytes("dense", self.exchanging, self.raw_bytes, self.raw_bytes)

    @property
    def residual_bytes(self) -> int:
        """Memory for error feedback on this rank; twice that while a step runs."""
        total = sum(v.raw_bytes for v in self.variables) if self.momentum else 0
        if not self.leads:
            return total
        for bucket in self.layouts:
            if bucket.codec is not None and not bucket.codec.lossless:
                numel = sum(v.numel for v in bucket.variables)
                total += 4 * numel
                if bucket.route == "two_phase":
                    total += 4 * numel // self.exchanging
        return total

    @property
    def compressed_numel(self) -> int:
        return sum(v.numel for b in self.buckets if b.codec is not None for v in b.variables)

    @property
    def total_numel(self) -> int:
        return sum(v.numel for v in self.variables)

    def rows(self) -> list[tuple[str, str, str, int, int, str]]:
        """(variable, shape, codec, raw bytes, payload bytes, route) in the order of the model."""
        rows = {}
        for bucket in self.buckets:
            for v in bucket.variables:
                codec = bucket.codec
                payload = v.raw_bytes if codec is None else codec.payload_size(v.numel)
                spec, route = "none" if v.codec is None else v.codec.spec, bucket.route
                if v.codec is not None and v.codec.decides:
                    found = "none" if codec is None else codec.spec
                    spec = f"auto: {found}" if self.chosen else spec
                    route = route if self.chosen else "chosen when built"
                shape = shape_text(v.shape)
                rows[v.index] = (v.path, shape, spec, v.raw_bytes, payload, route)
        return [rows[v.index] for v in self.variables]

    def __str__(self) -> str:
        from rich.table import Table

        title, sends = f"among {self.world_size} ranks", "A rank sends {} bytes a step"
        if self.hosts is not None:
            title = f"between {len(self.hosts)} hosts of {', '.join(map(str, self.hosts))} ranks"
            sends = "The first rank of a host sends {} bytes a step to other hosts"
        table = Table(title=f"Gradient exchange {title}", show_footer=True)
        table.add_column("variable", "total", overflow="fold")
        table.add_column("shape", f"{self.total_numel:,}", justify="right")
        table.add_column("codec", "")
        table.add_column("raw bytes", f"{self.raw_bytes:,}", justify="right")
        table.add_column("payload bytes", f"{self.payload_bytes:,}", justify="right")
        table.add_column("route", "")
        for path, shape, spec, raw, payload, route in self.rows():
            table.add_row(path, shape, spec, f"{raw:,}", f"{payload:,}", route)
        where = "" if self.hosts is None else " on this rank"
        share = self.compressed_numel / max(1, self.total_numel)
        ratio = self.dense_bytes / self.sent_bytes if self.sent_bytes else 1.0
        kept = "residuals and velocities" if self.momentum else "residuals"
        text = (
            f"{as_text(table)}{sends.format(f'{self.sent_bytes:,}')} instead of "
            f"{self.dense_bytes:,} ({ratio:.1f}× fewer); {share:.1%} of the parameters are "
            f"compressed;\n{len(self.buckets)} buckets; {kept} take {self.residual_bytes:,} "
            f"bytes of memory{where}, twice that during a step."
        )
        if self.warmup_epochs:
            ramp = ", ".join(f"{sent:,}" for sent in self.stage_bytes[:-1])
            text += f"\nThe first epochs warm up, with {ramp} bytes a step in one after the other."
        return text


def as_text(table: Table) -> str:
    """A table in the width in which gradcomp prints."""
    from rich.console import Console

    out = io.StringIO()
    # The text goes to logs and files as often as to a terminal: a fixed width keeps it whole.
    Console(file=out, width=120).print(table)
    return out.getvalue()


def shape_text(shape: Sequence[int]) -> str:
    """`64×32`."""
    return "×".join(map(str, shape)) or "scalar"


def describe(variables: Sequence[object]) -> list[tuple[str, tuple[int, ...], str]]:
    """(path, shape, dtype) of Keras and TensorFlow variables, or whatever has a shape and dtype."""
    described = []
    for i, v in enumerate(variables):
        path = getattr(v, "path", None) or getattr(v, "name", None) or f"variable_{i}"
        shape = tuple(getattr(v, "shape", ()))
        if any(d is None for d in shape):
            raise ValueError(
                f"{path} has the shape {shape}, which is not known before a step runs; "
                "gradcomp sizes payloads from static shapes: give the variable a full shape"
            )
        dtype = getattr(v, "dtype", "float32")
        name = getattr(dtype, "name", None) or str(dtype)
        described.append((str(path).removesuffix(":0"), tuple(int(d) for d in shape), name))
    return described
