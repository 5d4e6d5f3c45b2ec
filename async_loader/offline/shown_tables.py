"""How a table is printed: its fields, histograms, and some rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from async_loader.schema import Schema

if TYPE_CHECKING:
    from rich.table import Table

_WIDTH = 40


def fields_of(schema: Schema | None) -> list[dict[str, Any]]:
    """Return the fields of a schema in plain values."""
    return [
        {
            "name": field.name,
            "dtype": field.dtype.name,
            "shape": list(field.shape),
            "stack": field.stack,
            "next": field.next,
        }
        for field in (schema.fields if schema is not None else ())
    ]


def fields_table(fields: Sequence[Mapping[str, Any]]) -> Table:
    """Return the fields of `fields_of` as a table."""
    from rich.table import Table

    shown = Table("field", "dtype", "shape", "stack", "next", header_style="bold")
    for one in fields:
        shape = str(one["shape"])
        row = one["name"], one["dtype"], shape, str(one["stack"]), one["next"] or ""
        shown.add_row(*map(_printable, row))
    return shown


def bars_of(title: str, one: Mapping[str, Any] | None, count: int) -> list[str]:
    """Return lines for a `histogram` of ``count`` numbers, which leaves out those not finite."""
    counts, edges = ([], [0.0]) if one is None else (one["counts"], one["edges"])
    lines = [title]
    for n, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
        bar = "#" * round(_WIDTH * int(n) / max(1, *counts))
        lines.append(f"{low:>10.4g} to {high:<10.4g} {bar} {n}")
    left_out = count - sum(counts)
    return [*lines, f"{left_out:,} more are not finite: NaN or infinite"] if left_out else lines


def rows_table(schema: Schema, batch: Mapping[str, Any]) -> Table:
    """Return the rows of a batch as a table: their ids, and the fields of a schema."""
    from rich.table import Table

    names = ["index", *(_printable(field.name) for field in schema.fields)]
    rows = Table(*names, header_style="bold")
    leaves = schema.leaves({name: batch[name] for name in schema.structure.keys})  # type: ignore[union-attr]
    for i, id_ in enumerate(batch["index"].tolist()):
        rows.add_row(str(id_), *(_brief(leaf[i]) for leaf in leaves))
    return rows


def _printable(text: str) -> str:
    """Return text without control characters, and without what would be taken for markup."""
    from rich.markup import escape

    shown = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)
    return escape(shown)


def _brief(value: Any) -> str:
    flat = np.asarray(value).reshape(-1)
    if flat.dtype.kind == "b":
        shown = ["yes" if one else "no" for one in flat[:3]]
    else:
        shown = [f"{one:.3g}" for one in flat[:3].tolist()]
    return " ".join(shown) + (" ..." if len(flat) > 3 else "")
