"""Numbers with their units, as people read them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """For example ``2 h 5 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    first = next(number for number, (_, size) in enumerate(units) if whole >= size)
    return " ".join(
        f"{whole % units[number - 1][1] // size if number > first else whole // size} {name}"
        for number, (name, size) in list(enumerate(units))[first : first + 2]
    )


def short_duration(seconds: float) -> str:
    """For example ``310 µs``, ``1.5 ms`` or ``2.0 s``."""
    if seconds < 0.001:
        return f"{seconds * 1e6:,.0f} µs"
    return f"{seconds * 1000:,.1f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def per_second_text(rate: float) -> str:
    """For example ``1,200/s`` or ``0.3/s``."""
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:,.1f}/s"


def count_of(number: int, noun: str) -> str:
    """For example ``1 dead letter`` or ``2,000 dead letters``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def byte_text(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1024 or unit == "GB":
            return f"{size:,.0f} {unit}"
        size /= 1024
    raise AssertionError
