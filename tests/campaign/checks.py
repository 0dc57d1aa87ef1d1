"""What may never be seen of the workload, by the names that the field has for it.

==================
================================================================================== lost write
an effect that was committed is not there: a number is below what it must be duplicate           an
effect is there twice: a number, or a row of a table, is above what it must be aborted read        a
part of a commit is there without the rest of it, or an effect without its cause unseen
the source was told that a record is done, and its effect is not to be seen nonmonotonic read   what
was seen before is not there any more ==================
==================================================================================

`Watcher` is given one snapshot after the other, each of one transaction, while things go wrong, and
knows what it saw before. Plain code: no SQL, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tests.campaign.workload import (
    BRANCHES,
    KEYS,
    PARTITIONS,
    TENTH,
    TWENTY_FIFTH,
    Work,
    deposits_of,
)

Anomaly = Literal["lost write", "duplicate", "aborted read", "unseen", "nonmonotonic read"]
ANOMALIES: tuple[Anomaly, ...] = (
    "lost write", "duplicate", "aborted read", "unseen", "nonmonotonic read",
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """One anomaly."""

    what: Anomaly
    where: str

    def __str__(self) -> str:
        return f"{self.what}: {self.where}"


@dataclass
class Snapshot:
    """What one transaction sees."""

    accounts: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    """Count, sum, sum of squares, and deposits out of their order, of each account."""
    branches: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Count and sum of each branch."""
    ledger: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Count and sum of each account, as the user's table has them."""
    receipts: dict[int, tuple[int, int]] = field(default_factory=dict)
    """How many rows there are of each account, and how many different ones."""
    acknowledged: dict[int, int] = field(default_factory=dict)
    """Rows of each partition of which the source was told that they are done: a prefix."""
    incarnation: str | None = None
    """Of the server; None: not asked, as it can lose nothing."""
    pending: int | None = None
    """Entries for the branches that are stored, and not known to have arrived; None: not asked."""


class Watcher:
    """Compares each snapshot with what must be so, and with the one before."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._ordered = work.guarantee == "strong"
        self._before = Snapshot()

    def look(self, now: Snapshot) -> list[Found]:
        """What is wrong with this one."""
        found = [
            *self._goes_back(now),
            *self._sums(now),
            *self._is_seen(now),
            *self._flows(now),
        ]
        if self._work.tables:
            found += self._agrees(now)
        self._before = now
        return found

    def _goes_back(self, now: Snapshot) -> list[Found]:
        if now.incarnation != self._before.incarnation:
            return []  # the server has lost its newest commits: what is left must agree with itself
        found = []
        for what in ("accounts", "branches", "ledger", "receipts"):
            after = getattr(now, what)
            for key, (count, *_) in getattr(self._before, what).items():
                seen = after.get(key, (0,))[0]
                if seen < count:
                    found.append(Found("nonmonotonic read", f"{what} {key}: {count}, then {seen}"))
        for partition, rows in self._before.acknowledged.items():
            seen = now.acknowledged.get(partition, 0)
            if seen < rows:
                where = f"position of partition {partition}: {rows}, then {seen}"
                found.append(Found("nonmonotonic read", where))
        return found

    def _sums(self, now: Snapshot) -> list[Found]:
        """Where the order is promised, an account has its first deposits, each once."""
        if not self._ordered:
            return []
        found = []
        for account, (count, total, squares, astray) in now.accounts.items():
            wanted = sums(count)
            if (total, squares) != wanted or astray:
                what: Anomaly = "duplicate" if total < wanted[0] else "lost write"
                where = f"account {account}: {count} deposits come to {total}, {squares}, "
                where += f"not {wanted}; {astray} came out of order"
                found.append(Found(what, where))
        return found

    def _is_seen(self, now: Snapshot) -> list[Found]:
        """What the source was told is done has its effect."""
        found = []
        for partition, rows in now.acknowledged.items():
            for account in range(partition * KEYS, (partition + 1) * KEYS):
                least = deposits_of(account, rows)
                count = now.accounts.get(account, (0,))[0]
                if count < least and self._work.guarantee == "strong":
                    where = f"account {account}: {least} deposits are acknowledged, {count} seen"
                    found.append(Found("unseen", where))
        return found

    def _flows(self, now: Snapshot) -> list[Found]:
        """An entry is in a branch because its deposit is in an account, and waits until it is."""
        accounts = sum(count for count, *_ in now.accounts.values())
        branches = sum(count for count, _ in now.branches.values())
        found = []
        if branches > accounts:
            where = f"{branches} entries of {accounts} deposits"
            found.append(Found("aborted read", where))
        if now.pending is not None and branches + now.pending < accounts:
            where = f"{accounts} deposits, {branches} entries arrived, {now.pending} pending"
            found.append(Found("lost write", where))
        return found

    def _agrees(self, now: Snapshot) -> list[Found]:
        """The user's tables and the state are written by one commit."""
        found = []
        for account, (count, *_) in now.accounts.items():
            in_ledger, _ = now.ledger.get(account, (0, 0))
            if in_ledger != count - count % TENTH:
                where = f"account {account}: {count} in the state, {in_ledger} in the ledger"
                found.append(Found("aborted read", where))
            rows, different = now.receipts.get(account, (0, 0))
            if rows != different:
                where = f"account {account}: {rows} receipts, {different} different ones"
                found.append(Found("duplicate", where))
            elif rows != count // TWENTY_FIFTH:
                where = f"account {account}: {count} deposits, {rows} receipts"
                found.append(Found("aborted read", where))
        alone = now.ledger.keys() - now.accounts.keys()
        return [
            *found,
            *(
                Found("aborted read", f"account {account}: in the ledger alone")
                for account in alone
            ),
        ]


def sums(count: int) -> tuple[int, int]:
    """Of the first so many numbers, and of their squares."""
    return count * (count - 1) // 2, (count - 1) * count * (2 * count - 1) // 6


def final(now: Snapshot, rows: int, *, tables: bool) -> list[Found]:
    """What is wrong when all is done, and each partition had so many rows."""
    found = []
    for account in range(PARTITIONS * KEYS):
        count = deposits_of(account, rows)
        have, total, squares, _ = now.accounts.get(account, (0, 0, 0, 0))
        found += _compare(f"account {account}", (have, total, squares), (count, *sums(count)))
        if tables:
            rounded = count - count % TENTH
            entry = now.ledger.get(account, (0, 0))[0]
            found += _compare(f"ledger {account}", (entry,), (rounded,))
            receipts = now.receipts.get(account, (0, 0))
            found += _compare(f"receipts {account}", receipts, (count // TWENTY_FIFTH,) * 2)
    branches = _branches(rows)
    for branch in range(BRANCHES):
        found += _compare(
            f"branch {branch}", now.branches.get(branch, (0, 0)), branches.get(branch, (0, 0))
        )
    return found


def _branches(rows: int) -> dict[int, tuple[int, int]]:
    """Count and sum of each branch.

    The deposits of a number are of a row of accounts one beside the other, except for the last
    number of a partition: so they are counted account by account, in rounds of `BRANCHES` numbers.
    """
    found: dict[int, tuple[int, int]] = {}
    for account in range(PARTITIONS * KEYS):
        count = deposits_of(account, rows)
        for rest in range(min(count, BRANCHES)):
            times = -(-(count - rest) // BRANCHES)
            branch = (account + rest) % BRANCHES
            have, total = found.get(branch, (0, 0))
            found[branch] = (
                have + times,
                total + times * rest + BRANCHES * times * (times - 1) // 2,
            )
    return found


def _compare(where: str, have: tuple[int, ...], wanted: tuple[int, ...]) -> list[Found]:
    if have == wanted:
        return []
    what: Anomaly = "duplicate" if have > wanted else "lost write"
    return [Found(what, f"{where}: {have}, not {wanted}")]
