"""Log events on a terminal: the event, its figures, and texts in lines of their own."""

from __future__ import annotations

from millwheel.cli.log_lines import log_lines

EVENT = {
    "timestamp": "09:15:25Z",
    "level": "warning",
    "event": "event_time_will_end",
    "with_end": ["lines", "words"],
    "what_to_do": "if the input continues: follow=True on the source, or --keep-open",
    "seconds": 3.5,
    "key": "a b",
}


def test_a_wide_terminal_has_a_line_for_the_event_and_one_for_each_text() -> None:
    assert list(log_lines(EVENT, 120)) == [
        "09:15:25Z warning: event_time_will_end  with_end='lines, words' seconds=3.5 key='a b'",
        "          what_to_do: if the input continues: follow=True on the source, or --keep-open",
    ]


def test_a_narrow_terminal_has_folded_lines() -> None:
    for width in range(40, 120):
        shown = list(log_lines(EVENT, width))
        assert max(map(len, shown)) < width
        words = " ".join(" ".join(shown).split())
        assert "if the input continues: follow=True on the source, or --keep-open" in words
        assert all(line.startswith(" " * 10) for line in shown[1:])


def test_an_ordinary_event_has_no_level_and_a_failed_one_its_traceback() -> None:
    assert list(log_lines({"event": "started", "level": "info", "timestamp": "t"}, 80)) == [
        "t started"
    ]
    assert list(log_lines({"event": "lost", "level": "error", "exception": "Trace\n at x\n"}, 80))[
        1
    ] == ("Trace\n at x")


def test_signs_that_a_terminal_obeys_are_escaped() -> None:
    hostile = {"event": "read\x1b[2J", "level": "info", "row": "\x1b]0;x\x07", "lines": ["\x1b"]}
    assert "\x1b" not in "\n".join(log_lines(hostile, 80))
