"""Writes searches.jsonl: nearly in order, and some of them an hour late.

python make_searches.py 200000
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta

QUERIES = ("black cat", "barn owl", "cat food", "night owl", "black tea", "tea")
START = datetime(2024, 1, 1, 9, tzinfo=UTC)


def write(number: int, path: str = "searches.jsonl") -> None:
    """Write searches of two hours, up to 4 seconds out of order; every hundredth is late."""
    with open(path, "w", encoding="utf-8") as file:
        for n in range(number):
            seconds = 7200 * n / number - n * 7 % 5
            if n % 100 == 99:
                seconds -= 3600
            at = START + timedelta(seconds=round(seconds, 3))
            query = QUERIES[n * 31 % 101 % len(QUERIES)]
            file.write(json.dumps({"at": at.isoformat(), "query": query}) + "\n")


if __name__ == "__main__":
    write(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
