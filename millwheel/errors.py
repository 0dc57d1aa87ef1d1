"""Every error millwheel raises on purpose, and whose fault each one is.

::

    MillwheelError
    ├── UsageError            the program or command line is wrong; nothing was started
    │   ├── GraphError        streams, computations and sinks do not fit together
    │   ├── SchemaBehind      the store's schema is older than this code
    │   ├── DeployRefused     the stored pipeline and this code do not agree
    │   ├── PooledStore       Postgres is behind a connection pooler that drops sessions' settings
    │   └── PlacementRefused  a key interval cannot be split or merged as it stands
    ├── UserCodeError         user code, or a value it made, failed on one record
    │   ├── NotTheSameAgain   weak code was run again on a record, and produced something else
    │   └── MigrationFailed   a stored value could not be brought to the version of this code
    ├── InputError            an input file is not what it was, or a row in it is bad
    ├── OutputError           a sink's file cannot be written, or is not the sink's own
    │   └── OutputFull        there is no room for it; tried again for a while
    ├── StoreError
    │   ├── StoreUnavailable  the store cannot be reached, or broke off; try again
    │   │   ├── BucketGone    a commit notes records of so long ago that all have acknowledged them
    │   │   └── StatementRace a user's statement met another transaction; try again
    │   ├── StatementError    a user's statement or sink row was refused by Postgres
    │   ├── CommitUnknown     the connection was lost while a commit was on the wire
    │   ├── StoreWentBack     the store may have lost its newest commits: start over
    │   └── EmbeddedServerError  the embedded Postgres cannot be started or used
    ├── PeerError             another process on the network does not say what fits here
    ├── NotCarriedOut         what an operator asked of the workers was not done in time
    ├── Fenced                another owner holds the interval; this one must let go
    └── InvariantBroken       a promise of the engine does not hold: a bug, stop at once

A message says what happened, where (computation, key, record, file and line) and
what to do next. ``exit_code`` is what the command line ends with.
"""

from __future__ import annotations


class MillwheelError(Exception):
    """The root: catch it to catch everything millwheel raises on purpose."""

    exit_code = 1


class UsageError(MillwheelError):
    """The program or the command line is wrong; nothing was started."""

    exit_code = 2


class GraphError(UsageError):
    """The pipeline's streams, computations and sinks do not fit together."""


class SchemaBehind(UsageError):
    """The store's schema is older than this code; the message names the command to run."""

    exit_code = 3


class DeployRefused(UsageError):
    """The stored pipeline and this code do not agree, and guessing would lose data."""

    exit_code = 4


class PooledStore(UsageError):
    """Postgres is reached through a connection pooler that does not pass on the settings of a session;
    at the start, or since somebody has put it in between."""


class PlacementRefused(UsageError):
    """A key interval cannot be split or merged as it stands; nothing was changed."""


class InputError(MillwheelError):
    """An input file cannot be read, is not what it was, or holds a bad row."""

    exit_code = 5


class OutputError(MillwheelError):
    """A sink's file cannot be opened or written, or is not the sink's own. Nothing is lost: what was
    not written is not committed."""

    exit_code = 11


class OutputFull(OutputError):
    """The disk or the quota under a sink's file is full; tried again for a while."""

    since = 0.0
    """When that file was first found full, by the worker's monotonic clock."""


class UserCodeError(MillwheelError):
    """User code, or a value it made, failed on one record."""

    exit_code = 6


class NotTheSameAgain(UserCodeError):
    """Weak code was run again on a record, and produced something else."""


class MigrationFailed(UserCodeError):
    """A migration of a state or stream failed on a stored value.

    That is no fault of a record: whatever ``on_error`` says, the worker stops, and what it was
    working on stays un-ACKed.
    """


class StoreError(MillwheelError):
    """Something about the store."""

    exit_code = 7


class StoreUnavailable(StoreError):
    """The store cannot be reached or broke off; nothing is lost, try again."""


class BucketGone(StoreUnavailable):
    """A bucket that a commit notes ids in was dropped: everybody has acknowledged those records, and
    the ones at hand are copies. Nothing was written; whoever reads the buckets again drops them."""


class StatementRace(StoreUnavailable):
    """A user's statement met a lock, a deadlock or a serialization failure. It is tried again; one that
    meets it for as long as patience with the store lasts counts against its record."""


class StatementError(StoreError):
    """Postgres refused a statement or row that came from user code or a sink."""


class CommitUnknown(StoreError):
    """The connection was lost while a commit was on the wire: it may or may not be durable."""


class StoreWentBack(StoreError):
    """The store is another incarnation than the one this worker knows, or a chain of commits is
    shorter than it was: the newest commits may be lost. The worker forgets everything it holds in
    memory and claims its intervals again (decision 40)."""


class EmbeddedServerError(StoreError):
    """The embedded Postgres cannot be started, reached or used."""


class PeerError(MillwheelError):
    """What came over a connection is no frame, or does not fit here: the connection is closed."""

    exit_code = 9


class Fenced(MillwheelError):
    """Another owner holds the key interval; this one must let go (paper section 6.2)."""

    exit_code = 8


class NotCarriedOut(MillwheelError):
    """What an operator asked of the workers was not done in time; it may still be."""

    exit_code = 10


class InvariantBroken(MillwheelError):
    """A promise of the engine does not hold. This is a bug of millwheel: stop, report."""

    exit_code = 70
