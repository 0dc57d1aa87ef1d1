"""The summary of a run, as text and as JSON."""

from __future__ import annotations

from millwheel.cli.progress_line import moment
from millwheel.cli.terminal import styled
from millwheel.services.interruption import Interruption
from millwheel.services.run import Summary
from millwheel.store.console.inspection import time_text

USUAL_COUNTERS = {
    "processed",
    "records_out",
    "duplicates_dropped",
    "bloom_maybes",
    "dead_letters",
    "bad_rows",
}
"""Counters without a line of their own here."""


def summary_json(summary: Summary, interruption: Interruption) -> dict[str, object]:
    stopped = summary.outcome == "stopped" and interruption.signal is not None
    return {
        "pipeline": summary.pipeline,
        "outcome": summary.outcome,
        "signal": interruption.signal.name if stopped and interruption.signal else None,
        "processed": summary.processed,
        "read": summary.read,
        "seconds": round(summary.seconds, 3),
        "records_per_second": round(summary.per_second, 1),
        "low_watermark": time_text(summary.low_watermark),
        "duplicates_dropped": summary.counters.get("duplicates_dropped", 0),
        "dead_letters": _dead_letters(summary),
        "counters": summary.counters,
    }


def summary_lines(summary: Summary, *, keep_open: bool) -> list[str]:
    if summary.outcome == "nothing to do":
        if keep_open:
            return [f"{summary.pipeline}: no new input, all input so far is processed"]
        return [f"{summary.pipeline}: complete, nothing to do"]
    outcome = styled("all input so far is processed" if keep_open else "complete", "good")
    if summary.outcome == "stopped":
        outcome = styled("stopped; run again to resume", "warning")
    dead_letters = _dead_letters(summary)
    figures = {
        "records processed": f"{summary.processed:,} ({summary.per_second:,.0f}/s)",
        **({} if summary.read is None else {"rows read": f"{summary.read:,}"}),
        "duplicates dropped": f"{summary.counters.get('duplicates_dropped', 0):,}",
        "dead letters": styled(f"{dead_letters:,}", "error" if dead_letters else None),
    }
    for counter, total in summary.counters.items():
        if counter not in USUAL_COUNTERS:
            figures[counter.replace("_", " ")] = f"{total:,}"
    figures["low watermark"] = moment(summary.low_watermark)
    width = max(map(len, figures))
    return [
        f"{summary.pipeline}: {outcome} (this run: {summary.seconds:.1f} s)",
        *(f"  {name:{width}}  {value}" for name, value in figures.items()),
    ]


def _dead_letters(summary: Summary) -> int:
    return summary.counters.get("dead_letters", 0) + summary.counters.get("bad_rows", 0)
