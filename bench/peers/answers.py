"""Compute the correct balances, and check a program's output."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import msgspec

from bench.workload import Balance, Payment


class WrongAnswer(Exception):
    """A program lost a payment, counted one twice, or computed a wrong sum."""


Expected = dict[int, tuple[int, int]]
"""Account -> number and sum of its payments."""


def expected(path: Path, records: int) -> Expected:
    """Compute the balances after the first `records` payments of a file."""
    decode = msgspec.json.Decoder(Payment).decode
    found: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    with path.open("rb") as lines:
        for payment in map(decode, islice(lines, records)):
            number, total = found[payment.account]
            found[payment.account] = number + 1, total + payment.amount
    return dict(found)


def read(directory: Path) -> list[Balance]:
    """Read the balances that a program wrote to `balances.jsonl`, or to files in `balances`."""
    one = directory / "balances.jsonl"
    files = (
        [one]
        if one.exists()
        else [path for path in (directory / "balances").rglob("*part*") if _is_final(path)]
    )
    decode = msgspec.json.Decoder(Balance).decode
    return [decode(line) for path in files for line in path.read_bytes().splitlines()]


def _is_final(path: Path) -> bool:
    """Whether a file is neither a checksum nor one that its writer may still discard."""
    return path.is_file() and not path.name.startswith((".", "_")) and path.suffix != ".crc"


def read_finals(directory: Path) -> list[Balance]:
    """Read the last balance of each account, for a program that does not keep its outputs."""
    lines = (directory / "finals.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Balance) for line in lines]


def check_finals(balances: Iterable[Balance], right: Expected) -> None:
    """Check the last balance of each account.

    Raises:
        WrongAnswer: one is wrong.
    """
    found = {b.account: (b.payments, b.total) for b in balances}
    wrong = {
        account for account in found.keys() | right if found.get(account) != right.get(account)
    }
    if wrong:
        account = min(wrong)
        raise WrongAnswer(f"account {account}: {found.get(account)}, not {right.get(account)}")


def check(balances: Iterable[Balance], right: Expected) -> None:
    """Check that there is a balance for each payment, in any order, and the last of each account.

    Raises:
        WrongAnswer: a balance is missing or wrong.
    """
    totals: dict[int, dict[int, int]] = defaultdict(dict)
    for balance in balances:
        known = totals[balance.account].setdefault(balance.payments, balance.total)
        if known != balance.total or balance.payments < 1:
            raise WrongAnswer(f"two answers for payment {balance.payments} of {balance.account}")
    for account, (number, total) in right.items():
        found = totals.pop(account, {})
        if sorted(found) != list(range(1, number + 1)):
            raise WrongAnswer(
                f"account {account} had {number} payments, but has {len(found)} balances"
            )
        if found[number] != total:
            raise WrongAnswer(f"account {account} holds {total}, not {found[number]}")
    if totals:
        raise WrongAnswer(f"account {next(iter(totals))} had no payments")
