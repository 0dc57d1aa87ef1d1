"""Tables are never wider than their terminal, and whole without one."""

from __future__ import annotations

from rich.cells import cell_len

from millwheel.cli.fitted_tables import Cell, Fit, layout
from millwheel.cli.printing import sentence_lines, shortened

COLUMNS = ["name", "count", "zero", "empty", "note"]
ROWS: list[list[Cell]] = [
    ["apples", "12,345", "0", "", "the first of two notes, which is rather long"],
    ["名前", "7", "0", None, "short"],
]
WHOLE = [
    " name   | count  | zero | empty | note",
    "--------+--------+------+-------+----------------------------------------------",
    " apples | 12,345 |    0 |       | the first of two notes, which is rather long",
    " 名前   |      7 |    0 |       | short",
]
FIT = Fit(("note", "zero", "empty"))


def shown(width: int | None, fit: Fit = FIT) -> list[str]:
    return list(layout(COLUMNS, ROWS, width, fit).lines(width))


def test_a_pipe_and_a_wide_terminal_have_the_whole_table() -> None:
    assert shown(None) == shown(79) == shown(500) == WHOLE


def test_columns_that_say_nothing_are_left_out_before_a_text_is_cut() -> None:
    made = layout(COLUMNS, ROWS, 75, FIT)
    assert made.columns == ["name", "count", "empty", "note"]
    assert made.dropped == ("zero",)
    assert not any("…" in line for line in made.lines(75))


def test_a_text_is_cut_before_a_column_is_left_out() -> None:
    assert shown(50) == [
        " name   | count  | note",
        "--------+--------+--------------------------------",
        " apples | 12,345 | the first of two notes, which…",
        " 名前   |      7 | short",
    ]  # fmt: skip
    assert layout(COLUMNS, ROWS, 35, FIT).columns == ["name", "count"]


def test_numbers_and_headings_are_whole() -> None:
    for width in range(1, 90):
        for line in shown(width):
            assert "…" not in line or "12,3" not in line or "12,345" in line


def test_rows_are_stacked_where_no_table_fits() -> None:
    assert shown(30, Fit(cut=False)) == [
        "-[ record 1 ]-----------------",
        "name  | apples",
        "count | 12,345",
        "zero  | 0",
        "empty |",
        "note  | the first of two notes",
        "      | , which is rather long",
        "-[ record 2 ]-----------------",
        "name  | 名前",
        "count | 7",
        "zero  | 0",
        "empty |",
        "note  | short",
    ]


def test_no_line_is_wider_than_the_terminal() -> None:
    for width in range(14, 120):
        for fit in (FIT, Fit(), Fit(cut=False)):
            assert max(map(cell_len, shown(width, fit))) <= width


def test_expanded_is_that_of_psql() -> None:
    made = layout(COLUMNS, ROWS)
    assert [made.stacked_if("auto", width).stacked for width in (None, 79, 78)] == [
        False, False, True,
    ]  # fmt: skip
    assert made.stacked_if("on", 500).stacked
    assert not made.stacked_if("off", 10).stacked
    assert list(layout(["a"], []).stacked_if("on", 80).lines(80)) == []


def test_cells_of_wide_signs_are_cut_by_their_width() -> None:
    assert [shortened("名前名前", cells) for cells in (8, 7, 4, 1)] == [
        "名前名前", "名前名…", "名…", "…",
    ]  # fmt: skip


def test_sentences_are_folded_at_words_and_commands_stay_whole() -> None:
    text = "  the schema is old. Run: millwheel migrate shop --store postgresql://db/shop"
    assert sentence_lines(text, None) == [text]
    assert sentence_lines(text, 40) == [
        "  the schema is old. Run:",
        "    millwheel migrate shop --store postgresql://db/shop",
    ]
    assert sentence_lines("a\x1b[2J b", 40) == ["a\\x1b[2J b"]
