"""A narrow terminal gets everything that a wide one gets."""

import io

from rich.console import Console
from rich.table import Table

from qat_tft.cli.display.narrow import fitting

NUMBERS = [str(number) for number in range(10_000_001, 10_000_007)]


def numbers() -> Table:
    table = Table("forecast", *(f"P{place}" for place in range(6)), title="q-risk", caption="lower is better")
    for name in ("seasonal naive", "last value"):
        table.add_row(name, *NUMBERS)
    return table


def shown(table: Table, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), markup=False)
    console.print(fitting(table, console))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_rows_stand_one_below_the_other_where_numbers_have_no_room_side_by_side() -> None:
    text = shown(numbers(), 40)
    assert all(text.count(f"P{place}: {number}\n") == 2 for place, number in enumerate(NUMBERS))
    lines = text.splitlines()
    assert (lines[0], lines[1], lines[8], lines[-1]) == (
        "q-risk",
        "forecast: seasonal naive",
        "forecast: last value",
        "lower is better",
    )
    assert max(map(len, lines)) <= 40


def test_a_table_stays_one_where_it_fits() -> None:
    text = shown(numbers(), 100)
    assert "forecast: " not in text
    assert all(text.count(number) == 2 for number in NUMBERS)


def test_a_long_cell_goes_on_in_the_next_line() -> None:
    reason = "because rounding would cost more than it gains here"
    table = Table("name", "why")
    table.add_row("gate", reason)
    text = shown(table, 30)
    assert "name: " not in text
    assert [word for word in reason.split() if word not in text] == []
