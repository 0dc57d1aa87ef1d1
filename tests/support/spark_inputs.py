"""Made-up input files for pipelines on Spark."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta
from pathlib import Path

AIRPORTS = ("JFK", "LGA", "EWR", "BOS", "ORD")


def write_flights(path: Path, number: int, seed: int = 1) -> None:
    """Made-up flights, in the order in which they are seen: some are days late."""
    chosen = random.Random(seed)
    rows = []
    for row in range(number):
        scheduled = datetime.fromisoformat("2013-01-01T05:00:00+00:00") + timedelta(
            minutes=row // 4
        )
        delay = chosen.choice([None, *range(-10, 60), 300])
        late = timedelta(days=2) if chosen.random() < 0.01 else timedelta(minutes=delay or 0)
        rows.append(
            {
                "row": row,
                "seen_at": (scheduled + late).isoformat(),
                "scheduled_at": scheduled.isoformat(),
                "origin": chosen.choice(AIRPORTS),
                "dest": "MIA",
                "carrier": "UA",
                "flight": chosen.randrange(500),
                "tailnum": None if chosen.random() < 0.02 else f"N{chosen.randrange(60)}",
                "dep_delay": delay,
                "cancelled": delay is None,
            }
        )
    rows.sort(key=lambda each: str(each["seen_at"]))
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))


def write_lines(path: Path, number: int, seed: int = 1) -> None:
    """Lines of words, out of order by up to 20 s, some of them twice and some of them late."""
    chosen = random.Random(seed)
    lines = []
    for place in range(number):
        at = place * 3 + chosen.randrange(20) + 1_000_000
        text = " ".join(chosen.choices(["mill", "wheel", "water", "stone", "grain"], k=3))
        lines += [{"at": at, "text": f"{text} w{place % 50}"}] * chosen.choice((1, 1, 2))
        if chosen.random() < 0.01:
            lines.append({"at": at - 300, "text": text})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
