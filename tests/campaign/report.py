"""What came of a campaign, as Markdown, from its lines alone."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.campaign import (  # noqa: F401 (they are in the list)
    faults_network,
    faults_placement,
    faults_store,
)
from tests.campaign.checks import ANOMALIES
from tests.campaign.faults import FAULTS
from tests.campaign.plan import (
    NEXMARK_SEEDS,
    QUERIES,
    TARGET_KINDS,
    TARGET_RECORDS,
    TARGETS,
)
from tests.campaign.results import FaultCount, Result

NEVER_RUN = {
    "reordering and loss of single packets": "this kernel has no netem; frames are lost and reordered by a "
    "proxy (`storm`), packets are lost and delayed by a narrow cable",
    "a kill between the state and the productions of a commit": "they are one statement: a client that "
    "dies has sent both or neither. `backend killed` ends the server amid it",
    "loss of power, and a disk that lies about what is durable": "the machine stays up: what Postgres wrote is "
    "in the page cache, whether it was flushed or not",
}
"""What is not run anywhere, and why."""

UNITS = {
    "kill": "effective kill -9",
    "zombie": "zombies fenced",
    "crash": "Postgres crashes and failovers",
    "partition": "partitions and deaf links",
}


@dataclass
class Sum:
    """All runs together."""

    results: list[Result] = field(default_factory=list)
    faults: dict[str, FaultCount] = field(default_factory=lambda: defaultdict(FaultCount))
    anomalies: Counter[str] = field(default_factory=Counter)
    records: int = 0
    """Those that the reader has watched; the events of Nexmark come on top."""
    events: int = 0
    seconds: float = 0.0

    def add(self, result: Result) -> None:
        """One more run. What this machine refused counts for nothing."""
        self.results.append(result)
        if result.name.startswith("nexmark-"):
            self.events += result.records
        else:
            self.records += result.records
        self.seconds += result.seconds
        self.anomalies.update(result.anomalies)
        for name, count in result.faults.items():
            mine = self.faults[name]
            mine.struck += count.struck
            mine.effective += count.effective
            mine.stalls += count.stalls
            mine.without_effect += count.without_effect

    @property
    def bad(self) -> list[Result]:
        """Runs that are not as they must be."""
        return [result for result in self.results if not result.good and not result.refused]

    def counts(self) -> dict[str, int]:
        """Effective faults by target."""
        found = dict.fromkeys(TARGETS, 0)
        for name, count in self.faults.items():
            what = FAULTS[name].counts_as if name in FAULTS else ""
            if what:
                found[what] += count.effective
        return found

    def kinds(self) -> list[str]:
        """Faults that had their effect at least once."""
        return sorted(name for name, count in self.faults.items() if count.effective)

    def ledgers_done(self) -> bool:
        """Whether enough has happened, of everything but Nexmark."""
        return (
            all(self.counts()[name] >= least for name, least in TARGETS.items())
            and len(self.kinds()) >= TARGET_KINDS
            and self.records >= TARGET_RECORDS
        )

    def nexmark(self) -> dict[str, int]:
        """Seeds that came out equal to SQL, by query."""
        found = dict.fromkeys(QUERIES, 0)
        for result in self.results:
            if result.name.startswith("nexmark-") and result.good:
                found[result.name.split("-")[1]] += 1
        return found

    def nexmark_done(self) -> bool:
        """Whether all seeds of all queries have."""
        return all(number >= NEXMARK_SEEDS for number in self.nexmark().values())

    def reached(self) -> bool:
        """Whether all that is to be shown was shown."""
        return not self.bad and self.ledgers_done() and self.nexmark_done()


def summed(results: Iterable[Result]) -> Sum:
    """All of them; of a name that is there twice the later one."""
    found = Sum()
    for result in {result.name: result for result in results}.values():
        found.add(result)
    return found


def markdown(found: Sum) -> str:
    """The report."""
    return "\n\n".join(
        ["# The fault campaign", _opening(found), _targets(found), _anomalies(found),
         _faults(found), _nexmark(found), _not_run(found), _runs(found)]
    ) + "\n"  # fmt: skip


def _opening(found: Sum) -> str:
    return (
        "Made by `python -m tests.campaign --report`, from the lines of its runs alone; what each fault really "
        "does, and what the checker proves, is told in [decision 35](decisions/0035-the-fault-campaign.md).\n\n"
        f"{len(found.results):,} runs, {found.seconds / 3600:.1f} hours, {found.records:,} records read (and {found.events:,} events of Nexmark), "
        f"{sum(result.commits for result in found.results):,} commits seen, "
        f"{sum(result.looks for result in found.results):,} snapshots checked while things went wrong. "
        f"Workers lost the answer to {sum(result.unknown_commits for result in found.results):,} commits. "
        + (
            "**Everything was as it must be.**"
            if not found.bad
            else "**Not everything held: see below.**"
        )
    )


def _table(head: str, rows: Iterable[Iterable[object]]) -> str:
    columns = head.split(" | ")
    lines = [f"| {head} |", "|" + "|".join("---" for _ in columns) + "|"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _targets(found: Sum) -> str:
    rows: list[tuple[object, ...]] = [
        (UNITS[name], f"{found.counts()[name]:,}", f"{least:,}") for name, least in TARGETS.items()
    ]
    rows.append(("kinds of fault", len(found.kinds()), TARGET_KINDS))
    rows.append(("records", f"{found.records:,}", f"{TARGET_RECORDS:,}"))
    done = sum(found.nexmark().values())
    rows.append(("Nexmark runs equal to SQL", done, NEXMARK_SEEDS * len(QUERIES)))
    return "## What was asked for\n\n" + _table("what | found | asked for", rows)


def _anomalies(found: Sum) -> str:
    rows: list[tuple[object, ...]] = [(name, found.anomalies[name]) for name in ANOMALIES]
    rows.append(
        (
            "difference to SQL in the end",
            sum(len(result.differences or ()) for result in found.results),
        )
    )
    chains = sum(max(result.broken_chains, 0) for result in found.results)
    rows.append(("commit that does not follow the one before", chains))
    text = "## Anomalies\n\n" + _table("anomaly | found", rows)
    for result in found.bad:
        text += f"\n\n### {result.name}, seed {result.seed}\n\n"
        told = [*result.errors, *result.told[:10], *(result.differences or ())[:10]]
        text += "\n".join(f"* {line}" for line in told)
    return text


def _faults(found: Sum) -> str:
    rows = []
    for name, count in sorted(found.faults.items()):
        stalls = sorted(count.stalls)
        rows.append(
            (
                name, count.struck, count.effective,
                f"{statistics.median(stalls):.1f}" if stalls else "",
                f"{stalls[-1]:.1f}" if stalls else "",
                FAULTS[name].what if name in FAULTS else "SIGKILL to all workers of a Nexmark query.",
            )
        )  # fmt: skip
    return (
        "## Faults\n\nA stall is the longest time between two commits of one of the intervals that a fault "
        "met, as somebody sees it who looks at the last commits five times a second; faults overlap, and a "
        "fault that lasts for seconds stalls for as long.\n\n"
        + _table("fault | struck | effective | stall p50, s | longest, s | what it does", rows)
    )


def _nexmark(found: Sum) -> str:
    return (
        "## Nexmark\n\nEach seed: all workers killed five times before the end of the input, the answer equal "
        "to that of DuckDB.\n\n"
        + _table(
            "query | seeds equal | of", ((q, n, NEXMARK_SEEDS) for q, n in found.nexmark().items())
        )
    )


def _not_run(found: Sum) -> str:
    rows = list(NEVER_RUN.items())
    rows += [(name, FAULTS[name].what + " Not in any run so far.") for name in FAULTS
             if not found.faults[name].struck]  # fmt: skip
    refused = {
        result.name.rsplit("-", 1)[0]: result.refused for result in found.results if result.refused
    }
    rows += [(f"runs of `{name}`", f"this machine refused: {why}") for name, why in refused.items()]
    return "## Not run\n\n" + _table("what | why", rows)


def _runs(found: Sum) -> str:
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in found.results:
        groups[result.name.rsplit("-", 1)[0]].append(result)
    rows = []
    for name, results in groups.items():
        records, seconds = sum(r.records for r in results), sum(r.seconds for r in results)
        rows.append(
            (
                name, len(results), sum(result.good for result in results),
                ", ".join(sorted({result.guarantee for result in results if result.guarantee})),
                f"{records:,}", f"{records / max(seconds, 1):,.0f}",
                sum(count.effective for result in results for count in result.faults.values()),
            )
        )  # fmt: skip
    return "## Runs\n\n" + _table(
        "runs | how many | good | guarantee | records | records/s, faults and start included | effective faults",
        rows,
    )
