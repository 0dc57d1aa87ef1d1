"""What the right balances are, and whether a program found them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import msgspec

from bench.workload import Balance, Payment


class WrongAnswer(Exception):
    """A program lost a payment, counted one twice, or added up wrongly."""


Expected = dict[int, tuple[int, int]]
"""Account -> number and sum of its payments."""


def expected(path: Path, records: int) -> Expected:
    """The balances after the first payments of a file."""
    decode = msgspec.json.Decoder(Payment).decode
    found: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    with path.open("rb") as lines:
        for payment in map(decode, islice(lines, records)):
            number, total = found[payment.account]
            found[payment.account] = number + 1, total + payment.amount
    return dict(found)


def read(directory: Path) -> list[Balance]:
    """The balances that a program wrote to `balances.jsonl`, or to files in `balances`."""
    one = directory / "balances.jsonl"
    files = (
        [one]
        if one.exists()
        else [path for path in (directory / "balances").rglob("*part*") if _is_final(path)]
    )
    decode = msgspec.json.Decoder(Balance).decode
    return [decode(line) for path in files for line in path.read_bytes().splitlines()]


def _is_final(path: Path) -> bool:
    """Not a checksum, nor a file that its writer may still throw away."""
    return path.is_file() and not path.name.startswith((".", "_")) and path.suffix != ".crc"


def read_finals(directory: Path) -> list[Balance]:
    """The last balance of each account, of a program whose outputs are gone."""
    lines = (directory / "finals.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Balance) for line in lines]


def check_finals(balances: Iterable[Balance], right: Expected) -> None:
    """The last balance of each account is right.

    Raises:
        WrongAnswer: it is not.
    """
    found = {b.account: (b.payments, b.total) for b in balances}
    wrong = {
        account for account in found.keys() | right if found.get(account) != right.get(account)
    }
    if wrong:
        account = min(wrong)
        raise WrongAnswer(f"account {account}: {found.get(account)}, not {right.get(account)}")


def check(balances: Iterable[Balance], right: Expected) -> None:
    """One balance for each payment, whatever their order; and the last of each account is right.

    Raises:
        WrongAnswer: they are not.
    """
    told: dict[int, dict[int, int]] = defaultdict(dict)
    for balance in balances:
        if told[balance.account].setdefault(balance.payments, balance.total) != balance.total or (
            balance.payments < 1
        ):
            raise WrongAnswer(f"two answers for payment {balance.payments} of {balance.account}")
    for account, (number, total) in right.items():
        found = told.pop(account, {})
        if sorted(found) != list(range(1, number + 1)):
            raise WrongAnswer(
                f"account {account} had {number} payments; {len(found)} were answered"
            )
        if found[number] != total:
            raise WrongAnswer(f"account {account} holds {total}, not {found[number]}")
    if told:
        raise WrongAnswer(f"account {next(iter(told))} had no payments")
