"""Every error that millwheel raises on purpose; the type shows which party is at fault.

```python
try:
    pipeline.add(AddUp(), ORDERS.by(customer), retries=-1)
except GraphError as error:
    print(f"{error} (exit code {error.exit_code})")
```

::

    MillwheelError
    ├── UsageError
    │   ├── GraphError
    │   │   └── SqlError
    │   ├── SparkRefused
    │   ├── SchemaBehind
    │   ├── DeployRefused
    │   │   └── QueriesChanged
    │   ├── PooledStore
    │   └── PlacementRefused
    ├── CannotCarryOut
    ├── UserCodeError
    │   ├── NotTheSameAgain
    │   └── MigrationFailed
    ├── CodeBlocked
    ├── SetAside
    ├── SendRefused
    ├── InputError
    ├── OutputError
    │   └── OutputFull
    ├── StoreError
    │   ├── StoreUnavailable
    │   │   ├── BucketGone
    │   │   └── StatementRace
    │   ├── StatementError
    │   ├── CommitUnknown
    │   ├── StoreWentBack
    │   ├── SnapshotGone
    │   └── EmbeddedServerError
    ├── PeerError
    ├── NotCarriedOut
    ├── Fenced
    └── InvariantBroken

A message says what happened, where (computation, key, record, file and line), and how to continue.
``exit_code`` is the exit code of the command line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = [
    "BucketGone",
    "CannotCarryOut",
    "CodeBlocked",
    "CommitUnknown",
    "DeployRefused",
    "EmbeddedServerError",
    "Fenced",
    "GraphError",
    "InputError",
    "InvariantBroken",
    "MigrationFailed",
    "MillwheelError",
    "NotCarriedOut",
    "NotTheSameAgain",
    "OutputError",
    "OutputFull",
    "PeerError",
    "PlacementRefused",
    "PooledStore",
    "QueriesChanged",
    "SchemaBehind",
    "SendRefused",
    "SetAside",
    "SnapshotGone",
    "SparkRefused",
    "SqlError",
    "StatementError",
    "StatementRace",
    "StoreError",
    "StoreUnavailable",
    "StoreWentBack",
    "UsageError",
    "UserCodeError",
]


@dataclass(frozen=True, slots=True)
class ItemAtFault:
    """A record, timer or row that has stopped a worker, named as ``millwheel set-aside`` takes it.

    Attributes:
        computation: name of its step.
        name: of a row, its number.
        key: of a record or timer, its key as JSON.
        partition: of a row.
    """

    computation: str
    name: str
    key: str | None = None
    partition: str | None = None


class MillwheelError(Exception):
    """The base class of all errors that millwheel raises on purpose."""

    exit_code = 1
    item: ItemAtFault | None = None
    """None: no single record, timer or row is at fault, or it cannot be set aside."""


class UsageError(MillwheelError):
    """The program or the command line is wrong; nothing was started."""

    exit_code = 2


class GraphError(UsageError):
    """The pipeline's streams, computations and sinks do not fit together."""


class SqlError(GraphError):
    """A query cannot be compiled; the message shows the place.

    Attributes:
        reason: the mistake.
        place: where it is (`line`, `column`, counted from 1).
        advice: a remedy; may be empty.
    """

    def __init__(self, reason: str, place: Any, advice: str = "") -> None:
        self.reason, self.place, self.advice = reason, place, advice
        said = f"line {place.line}, column {place.column}: {reason}"
        super().__init__(f"{said}{'. ' + advice if advice else ''}\n{place.underlined()}")


class SparkRefused(UsageError):
    """A part of the pipeline cannot run on Spark."""


class SchemaBehind(UsageError):
    """The store's schema is older than this code; the message names the command to run."""

    exit_code = 3


class DeployRefused(UsageError):
    """The stored pipeline and this code do not agree; a guess would lose data."""

    exit_code = 4


class QueriesChanged(DeployRefused):
    """The store has other submitted queries than those that this code was built with (decision 81).

    A worker reads them again. Code that runs without them must not be deployed in their place.
    """


class PooledStore(UsageError):
    """A connection pooler in front of Postgres gives one session to several clients.

    Raised at the start, or later if a pooler is put in between while the pipeline runs.
    """


class PlacementRefused(UsageError):
    """A key interval cannot be split or merged in its present form; nothing was changed."""


class InputError(MillwheelError):
    """An input file cannot be read, has changed, or contains a bad row."""

    exit_code = 5


class SendRefused(MillwheelError):
    """A stream did not take records that a user sent; none of them was sent.

    Attributes:
        why: ``"unknown_stream"``, ``"no_id"``, ``"another_value"`` (of an id that was sent before),
            ``"no_right"``, ``"busy"`` (an open transaction has sent the id; try again), or
            ``"wrong"``.
    """

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


class OutputError(MillwheelError):
    """A sink's file cannot be opened or written, or belongs to another sink.

    Nothing is lost: output that was not written is not committed.
    """

    exit_code = 11


class OutputFull(OutputError):
    """The disk or quota of a sink's file is full; the write is retried for a while."""

    since = 0.0
    """Time of the first such failure for the file, on the worker's monotonic clock."""


class CannotCarryOut(MillwheelError):
    """A request of an operator to a key cannot be carried out; nothing was changed."""


class UserCodeError(MillwheelError):
    """User code, or a value from it, failed on one record."""

    exit_code = 6


class NotTheSameAgain(UserCodeError):
    """Weak code ran twice on a record, and its productions differ."""


class MigrationFailed(UserCodeError):
    """A migration of a state or stream failed on a stored value.

    No record is at fault, so ``on_error`` does not apply: the worker stops, and its records stay
    un-ACKed.
    """


class CodeBlocked(MillwheelError):
    """User code blocked the event loop of a worker for longer than ``block_limit_seconds``.

    It stands for the exception that the code should have raised: ``on_error`` applies to its
    record, which is not tried again.
    """


class SetAside(MillwheelError):
    """An operator has asked for a record to become a dead letter, whatever ``on_error`` says.

    Attributes:
        request: number of the request.
    """

    def __init__(self, request: int) -> None:
        super().__init__("an operator has set this record aside")
        self.request = request


class StoreError(MillwheelError):
    """The store failed or refused an operation."""

    exit_code = 7


class StoreUnavailable(StoreError):
    """The store cannot be reached, or the connection broke; nothing is lost, try again."""


class BucketGone(StoreUnavailable):
    """A commit notes ids in a bucket that has been dropped; nothing was written.

    All receivers have acknowledged such a bucket's records, so this commit has copies. They are
    dropped once the list of buckets is read again.
    """


class StatementRace(StoreUnavailable):
    """A user's statement met a lock, a deadlock or a serialization failure.

    It is retried for as long as the engine waits for an unavailable store; then its record has
    failed.
    """


class StatementError(StoreError):
    """Postgres refused a statement of user code or a row of a sink."""


class CommitUnknown(StoreError):
    """The connection was lost during a commit, which may or may not be durable."""


class StoreWentBack(StoreError):
    """The store may have lost its newest commits (decision 40).

    Its incarnation is not the one that this worker knows, or a chain of commits is shorter than
    before. The worker discards its memory and claims its intervals again.
    """


class SnapshotGone(StoreError):
    """A snapshot that Spark reads is not held any more: it was released, or the server has
    restarted."""


class EmbeddedServerError(StoreError):
    """The embedded Postgres cannot be started, reached or used."""


class PeerError(MillwheelError):
    """A peer sent an invalid frame, or one that this state does not allow; the connection is
    closed."""

    exit_code = 9


class Fenced(MillwheelError):
    """Another owner holds the key interval; this one must release it (paper section 6.2)."""

    exit_code = 8


class NotCarriedOut(MillwheelError):
    """The workers did not carry out an operator's request in time; they may still do so."""

    exit_code = 10


class InvariantBroken(MillwheelError):
    """A guarantee of the engine does not hold. This is a bug in millwheel: stop, and report it."""

    exit_code = 70
