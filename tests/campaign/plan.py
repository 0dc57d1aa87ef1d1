"""Which runs there are, as plain data, and what they are to come to together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import msgspec

QUERIES = ("q3", "q4", "q5", "q6", "q7", "q8", "q9", "q11")
NEXMARK_SEEDS = 60
NEXMARK_EVENTS = 20_000
NEXMARK_KILLS = 5
FEW_ROWS = 5
"""Times as many events for queries that read no bids, which are nine of ten events."""

TARGETS = {
    "kill": 1000,
    "zombie": 200,
    "crash": 100,
    "partition": 100,
}
"""Effective faults, by what they count as."""
TARGET_KINDS = 12
TARGET_RECORDS = 20_000_000
MOST_ROUNDS = 60
"""After so many rounds of runs the targets are out of reach."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What happens in one run."""

    name: str
    seed: int
    guarantee: str = "strong"
    tables: bool = True
    """Whether rows of the user's belong to the commits, which are several statements then."""
    workers: int = 3
    seconds: float = 90.0
    """Of faults."""
    faults: dict[str, float] = {}
    """Each with its weight; first each of them comes once."""
    rest: float = 1.0
    """Seconds between the beginnings of two faults, on average."""
    at_once: int = 2
    """Faults that may overlap."""
    site: str = "plain"
    frames: bool = False
    wire: bool = False
    machines: bool = False
    cgroup: bool = False
    lease_seconds: float = 2.0
    bucket_seconds: float = 15.0
    unacked: int = 4000
    """Rows of a partition that may be read and not acknowledged."""
    plant: str = ""
    """A bug to put into the workers (`tests.campaign.planted`)."""


class Nexmark(msgspec.Struct, frozen=True, kw_only=True):
    """A query whose workers are all killed again and again."""

    name: str
    seed: int
    query: str
    events: int = NEXMARK_EVENTS
    kills: int = NEXMARK_KILLS
    workers: int = 2


KILLS = {
    "kill": 4.0,
    "kill all": 1.5,
    "kill before commit": 1.0,
    "kill commit on the wire": 1.5,
    "kill between state and rows": 1.0,
    "kill before COMMIT is known": 1.0,
    "kill after commit": 1.0,
    "kill in takeover, sequencer raised": 0.7,
    "kill in takeover, before its logs are read": 0.7,
    "kill in bucket drop, tables locked": 0.6,
    "kill after bucket drop": 0.6,
    "kill new bucket, before its tables": 0.6,
    "kill in fold, before the states": 0.6,
    "kill in fold, states before timers": 0.6,
}
WITHOUT_TABLES = {
    name: weight
    for name, weight in KILLS.items()
    if name not in ("kill between state and rows", "kill before COMMIT is known")
}


def one_round(number: int) -> list[Run]:
    """Runs with all kinds of faults; each round has seeds of its own, and goes by another
    guarantee."""
    weak = ("weak", "tree")[number % 2]
    seed = 100 * number

    def run(name: str, **options: object) -> Run:
        made = {"name": f"{name}-{number}", "seed": seed + len(runs), **options}
        return msgspec.convert(made, Run)

    runs: list[Run] = []
    runs.append(run("kills", workers=4, faults=KILLS, rest=0.7, bucket_seconds=4.0, seconds=120.0))
    runs.append(run("zombies", workers=4, faults={"freeze": 1, "suspend": 3}, rest=0.8, at_once=2,
                    lease_seconds=1.5))  # fmt: skip
    runs.append(run("crashes", rest=1.5, at_once=1,
                    faults={"postgres": 4, "backend killed": 2, "backends": 1,
                            "kill": 1}))  # fmt: skip
    runs.append(
        run("strangers", rest=1.5, faults={"blocked": 3, "locked": 3, "kill": 1, "suspend": 1})
    )
    runs.append(run("frames", frames=True, rest=1.0,
                    faults={"cut": 1, "deaf": 3, "storm": 1, "shut": 2, "leave": 1, "join": 1,
                            "freeze": 1}))  # fmt: skip
    runs.append(run("unknown", wire=True, rest=0.8,
                    faults={"commit unknown, unsent": 1, "commit unknown, sent": 1,
                            "commit unknown, answered": 2, "commit unknown, late": 1,
                            "wire cut": 1, "wire stalled": 1, "suspend": 1}))  # fmt: skip
    runs.append(run("weak", guarantee=weak, frames=True, rest=1.0, tables=number % 4 < 2,
                    faults={"kill": 3, "suspend": 2, "postgres": 1, "deaf": 1, "cut": 1, "storm": 1,
                            "kill all": 0.5, "kill after commit": 1, "kill commit on the wire": 1,
                            "clock": 1}))  # fmt: skip
    runs.append(run("alone", tables=False, workers=3, faults=WITHOUT_TABLES, rest=0.8,
                    bucket_seconds=4.0, seconds=120.0))  # fmt: skip
    runs.append(run("machines", machines=True, rest=1.5, at_once=1, workers=4,
                    faults={"cable pulled": 2, "one way lost": 2, "cable narrow": 1}))  # fmt: skip
    runs.append(run("scarce", cgroup=True, rest=2.0,
                    faults={"out of memory": 3, "pool exhausted": 1, "held snapshot": 1, "clock": 2,
                            "kill": 1, "leave": 1}))  # fmt: skip
    runs.append(run("failover", site="replicated", rest=2.0, at_once=1, workers=3,
                    faults={"failover": 3, "kill": 1, "postgres": 1, "blocked": 1,
                            "locked": 1}))  # fmt: skip
    runs.append(run("losses", site="lagging", rest=2.0, at_once=1, workers=3,
                    faults={"failover that loses": 3, "kill": 1, "postgres": 1, "blocked": 1,
                            "locked": 1}))  # fmt: skip
    runs.append(run("server clock", site="stepping", rest=1.5, at_once=2, workers=3,
                    bucket_seconds=4.0,
                    faults={"server clock back": 3, "server clock forward": 2, "kill": 2,
                            "suspend": 1, "postgres": 1}))  # fmt: skip
    runs.append(run("disk", site="small disk", rest=3.0, at_once=1, workers=3, seconds=45.0,
                    faults={"disk full": 3, "kill": 1}))  # fmt: skip
    runs.append(run("volume", workers=2, seconds=360.0, rest=8.0, at_once=1,
                    faults={"kill": 3, "postgres": 1, "suspend": 1}))  # fmt: skip
    runs.append(run("placement", workers=4, rest=0.8, lease_seconds=1.5,
                    faults={"move": 3, "split": 3, "merge": 3, "kill in split or merge": 3,
                            "kill": 1, "suspend": 1, "postgres": 0.5}))  # fmt: skip
    return runs


def nexmark() -> Iterator[Nexmark]:
    """All queries with one seed, then with the next."""
    for seed in range(1, NEXMARK_SEEDS + 1):
        for query in QUERIES:
            events = NEXMARK_EVENTS * (FEW_ROWS if query in ("q3", "q8") else 1)
            yield Nexmark(name=f"nexmark-{query}-{seed}", seed=seed, query=query, events=events)


def rounds() -> Iterator[Run]:
    """Round after round."""
    for number in count():
        if number == MOST_ROUNDS:
            return
        yield from one_round(number)
