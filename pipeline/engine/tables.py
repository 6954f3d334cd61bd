"""Tables for people, as text; rich lays them out."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

WIDTH_WITHOUT_TERMINAL = 160


@dataclass(slots=True)
class Table:
    """A title, columns and rows of anything printable; numbers are set to the right."""

    title: str
    columns: Sequence[str]
    rows: list[tuple[object, ...]] = field(default_factory=list[tuple[object, ...]])

    def add(self, *cells: object) -> None:
        """Append one row."""
        assert len(cells) == len(self.columns), f"{self.title}: {len(cells)} cells for {len(self.columns)} columns"
        self.rows.append(cells)

    def render(self, width: int | None = None) -> str:
        """The table as text, at most `width` columns wide (None: the terminal's width); long cells wrap."""
        if width is None:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
        table = RichTable(title=Text(self.title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        for index, column in enumerate(self.columns):
            numeric = all(isinstance(row[index], int | float) for row in self.rows)
            table.add_column(Text(column), justify="right" if numeric and self.rows else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(str(cell)) for cell in row))
        text = io.StringIO()
        Console(file=text, width=width, color_system=None).print(table)
        return text.getvalue()
