"""Mistakes in settings and in the options of an injector."""

from __future__ import annotations

from tests.mistakes.entries import Mistake, Refusal


def setting(number: int, given: str, *says: str) -> Refusal:
    return Refusal(
        number,
        f"Settings({given})",
        (f"Settings({given.replace(chr(34), chr(39))}): give a ", "; the default is ", *says),
        changes=(("lease_seconds=10", given),),
        at="settings=",
    )


LEASE = "Time for which a worker that is frozen"

ENTRIES: tuple[Mistake, ...] = (
    Refusal(
        28,
        "lateness is negative",
        ("inject into 'orders': lateness may not be negative: -0:00:05",),
        changes=(("seconds=5", "seconds=-5"),),
        at="pipeline.inject(",
    ),
    Refusal(
        29,
        "lateness is a number",
        ("inject into 'orders': lateness must be a timedelta, for example timedelta(seconds=10)",),
        changes=(("timedelta(seconds=5)", "5"),),
        at="pipeline.inject(",
    ),
    Refusal(
        30,
        "a setting is misspelt",
        ("unexpected keyword argument 'lease_second'. Did you mean lease_seconds?",),
        changes=(("lease_seconds=10", "lease_second=10"),),
        at="lease_second=10",
        code=6,
    ),
    setting(31, "lease_seconds=0", "number from 0.5 to 3,600.0", LEASE),
    setting(32, "lease_seconds=-5", "number from 0.5 to 3,600.0", LEASE),
    setting(33, "store_patience_seconds=-1", "number from 0.0", "an unreachable store"),
    setting(34, "intervals=0", "whole number from 1 to 65,536", "Key intervals of a computation"),
    setting(35, 'lease_seconds="6"', "number from 0.5 to 3,600.0", LEASE),
    setting(36, "intervals=-1", "whole number from 1 to 65,536", "Key intervals of a computation"),
    setting(37, "bundle_records=0", "whole number from 1", "Maximum records and timers in one"),
    setting(38, "max_unacked_records=0", "whole number from 1", "Maximum records of one sender"),
)
