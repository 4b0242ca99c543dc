"""Tables on a narrow terminal: nothing is cut off, and what has no room side by side stands one below the other."""

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table

_INDENT = (0, 0, 0, 2)
_WIDE = 10_000


def fitting(table: Table, console: Console) -> RenderableType:
    """Return a table that a console has room for; where words or numbers would have to be broken, a list of its rows.

    Cells that are longer than their column go on in the next line.
    """
    for column in table.columns:
        column.overflow = "fold"
    needed = Measurement.get(console, console.options.update(width=_WIDE), table).minimum
    return table if needed <= console.width else Group(*_rows(table))


def _rows(table: Table) -> Iterator[RenderableType]:
    """The title, then the first cell of each row and below it the others, each behind the name of its column."""
    yield from (part for part in (table.title,) if part)
    columns = [(str(column.header).strip(), [*column.cells]) for column in table.columns]
    for row in range(table.row_count):
        for place, (name, cells) in enumerate(columns):
            text = str(cells[row]).strip()
            if text:
                line = f"{name}: {text}" if name else text
                yield line if place == 0 else Padding(line, _INDENT, expand=False)
    yield from (part for part in (table.caption,) if part)
