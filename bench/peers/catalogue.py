"""The peers, their settings, and the durability of each setting."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """An engine in one of its settings; `programs/on_<program>.py` explains the choice."""

    name: str
    program: str
    setting: str
    durability: str
    """When a record is done, and which failures it then survives."""
    environment: str | None
    """Name of its virtual environment; None: that of this project."""
    share: float = 1.0
    """Share of the input to process, smaller for slow peers."""
    uses_postgres: bool = False
    on_topics: bool = False
    """Whether it reads a topic of Kafka and writes another one, instead of files."""
    answers: bool = True
    """Whether it writes its balances to files."""

    @property
    def label(self) -> str:
        """Name and setting."""
        return f"{self.name}, {self.setting}"


MILLWHEEL = Peer(
    "millwheel",
    "millwheel",
    "file",
    "commit of each bundle in Postgres, output fsynced; survives loss of power",
    None,
    uses_postgres=True,
)
"""The reference for peers that write their outputs to files, as it does."""

MILLWHEEL_ON_TOPICS = Peer(
    "millwheel",
    "millwheel_kafka",
    "batch",
    "commit of each bundle in Postgres, then a Kafka transaction; exactly once",
    None,
    uses_postgres=True,
    on_topics=True,
)
"""The reference for peers that work from topic to topic."""

PROCESS_ONLY = "not all of it fsynced: survives the end of the process"

PEERS = (
    Peer(
        "millwheel",
        "millwheel",
        "discard",
        "commit of each bundle in Postgres, outputs stored there; survives loss of power",
        None,
        uses_postgres=True,
        answers=False,
    ),
    Peer("Bytewax", "bytewax", "batch", "snapshot (SQLite) of each batch, output fsynced",
         "bytewax"),
    Peer("Bytewax", "bytewax", "default", "snapshot every 10 s", "bytewax"),
    Peer("Bytewax", "bytewax", "memory", "none", "bytewax"),
    Peer(
        "Spark", "spark", "batch", f"checkpoint of each micro-batch, {PROCESS_ONLY}", "spark", 0.2
    ),
    Peer("Spark", "spark", "large",
         f"checkpoint of each micro-batch (50 times as large), {PROCESS_ONLY}", "spark"),
    Peer("Spark", "spark", "default", f"checkpoint of all available input, {PROCESS_ONLY}",
         "spark"),
    Peer(
        "PyFlink", "flink", "batch",
        f"checkpoint every 10 ms or as often as possible, {PROCESS_ONLY}", "flink"
    ),
    Peer(
        "PyFlink", "flink", "thread", f"the same, Python in the JVM's threads, {PROCESS_ONLY}",
        "flink"
    ),
    Peer("PyFlink", "flink", "second", f"checkpoint every second, {PROCESS_ONLY}", "flink"),
    Peer("PyFlink", "flink", "default", "none before the end", "flink"),
    Peer(
        "DBOS", "dbos", "async", "commits of each record in Postgres; survives loss of power",
        "dbos",
        0.02, uses_postgres=True,
    ),
    Peer(
        "DBOS", "dbos", "queue", "commits of each record in Postgres; survives loss of power",
        "dbos",
        0.01, uses_postgres=True,
    ),
    Peer(
        "DBOS", "dbos", "default", "commits of each record in Postgres; survives loss of power",
        "dbos",
        0.005, uses_postgres=True,
    ),
    Peer("Bytewax", "bytewax_kafka", "batch", "snapshot (SQLite) of each batch; at least once",
         "bytewax", on_topics=True),
    Peer("Bytewax", "bytewax_kafka", "default", "snapshot every 10 s; at least once", "bytewax",
         on_topics=True),
    Peer(
        "Quix Streams", "quix", "batch", "Kafka transaction for each batch; exactly once", "quix",
        on_topics=True
    ),
    Peer("Quix Streams", "quix", "default", "at least once, commit every 5 s", "quix",
         on_topics=True),
    Peer(
        "Faust", "faust", "batch", "Kafka transaction for each batch; exactly once", "faust", 0.1,
        on_topics=True
    ),
    Peer("Faust", "faust", "default", "at least once, commit every 2.8 s", "faust", 0.1,
         on_topics=True),
)  # fmt: skip
