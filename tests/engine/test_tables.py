from __future__ import annotations

import pytest

from pipeline.engine.tables import Table


def lines(table: Table, width: int | None = None) -> list[str]:
    return [line.rstrip() for line in table.render(width).splitlines() if line.strip()]


def test_a_table_shows_its_title_its_columns_and_every_row():
    table = Table("Stages", ("stage", "needs"))
    table.add("plan", "")
    table.add("align", "adapter")
    text = lines(table)
    assert text[0].strip() == "Stages"
    assert text[1].split() == ["stage", "needs"]
    assert text[3].split() == ["plan"]
    assert text[4].split() == ["align", "adapter"]


def test_numbers_are_set_to_the_right_and_words_to_the_left():
    table = Table("Problems", ("kernel", "N"))
    table.add("dense", 7168)
    table.add("masked grouped", 64)
    header, _, first, second = lines(table)[1:]
    assert len(first) == len(second) == len(header)
    assert first.endswith("7168")
    assert second.endswith("  64")
    assert first.index("dense") == second.index("masked")


def test_a_column_with_one_word_among_numbers_is_set_to_the_left():
    table = Table("Ranks", ("ranks",))
    table.add("all")
    table.add(7)
    first, second = lines(table)[3:]
    assert first.index("all") == second.index("7")


def test_square_brackets_in_a_cell_are_printed_as_they_are():
    table = Table("Reasons", ("rule",))
    table.add("weight_block_size [128, 128] [bold]of[/bold] [/] w13")
    assert "weight_block_size [128, 128] [bold]of[/bold] [/] w13" in table.render()


@pytest.mark.parametrize("title", ["tiny-pp4: report in /tmp/[bold]/runs", "tiny-pp4: report in /tmp/[/]/runs"])
def test_square_brackets_in_a_title_are_printed_as_they_are(title: str):
    """The title of the last table of a run holds a path and names that the user chose."""
    table = Table(title, ("stage", "what"))
    table.add("plan", "x" * 80)
    assert title in table.render()


def test_square_brackets_in_a_column_name_are_printed_as_they_are():
    assert "time [ms]" in Table("Times", ("stage", "time [ms]")).render()


def test_the_place_of_a_compiler_error_is_printed_as_it_is():
    """Rich reads `:100:` as the name of an emoji."""
    table = Table("driver.c:100: error", ("what:100:",))
    table.add("cudart.c:100: error")
    text = table.render()
    for part in ("driver.c:100: error", "what:100:", "cudart.c:100: error"):
        assert part in text


def test_a_long_cell_wraps_and_loses_nothing():
    reason = "unbroken" * 20
    table = Table("Not for DeepGEMM", ("layer", "reason"))
    table.add("gate", reason)
    text = lines(table, width=60)
    assert max(map(len, text)) <= 60
    assert "".join(line.replace("gate", "").strip() for line in text[3:]) == reason


def test_an_empty_table_still_shows_its_columns():
    assert lines(Table("Problems", ("kernel", "N")))[1].split() == ["kernel", "N"]


def test_text_has_no_terminal_colours():
    table = Table("Stages", ("stage",))
    table.add("plan")
    assert "\x1b" not in table.render()


def test_a_row_of_the_wrong_length_is_a_defect_that_names_the_table():
    with pytest.raises(AssertionError, match="Stages: 1 cells for 2 columns"):
        Table("Stages", ("stage", "needs")).add("plan")
