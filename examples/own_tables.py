"""Changes tables of your own in the transaction of each record: all of its statements, or
none.

    export STORE=postgresql://bank@db/bank
    psql $STORE -c 'CREATE TABLE account (name text PRIMARY KEY, cents bigint NOT NULL)'
    psql $STORE -c 'CREATE TABLE posting (at timestamptz, account text, cents bigint)'
    echo '{"at":"2024-01-01T00:00:00Z","payer":"ann","payee":"bob","cents":300}' > transfers.jsonl
    millwheel migrate examples.own_tables:pipeline --store $STORE
    millwheel run examples.own_tables:pipeline --store $STORE
    psql $STORE -c 'SELECT * FROM account'
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from millwheel import Computation, Context, JsonLines, Pipeline, Record, Stream
from millwheel.computations import FlatMap

CHANGE = """INSERT INTO account VALUES (%s, %s)
ON CONFLICT (name) DO UPDATE SET cents = account.cents + excluded.cents"""
NOTE = "INSERT INTO posting VALUES (%s, %s, %s)"


class Transfer(Struct):
    at: datetime
    payer: str
    payee: str
    cents: int


class Posting(Struct):
    """One side. Its key is the account, so no two workers change one row."""

    at: datetime
    account: str
    cents: int


TRANSFERS, POSTINGS = Stream("transfers", Transfer), Stream("postings", Posting)


def sides(transfer: Transfer) -> list[Posting]:
    at, cents = transfer.at, transfer.cents
    return [Posting(at, transfer.payer, -cents), Posting(at, transfer.payee, cents)]


class Book(Computation[Posting, None]):
    async def process_record(self, record: Record[Posting], ctx: Context[None]) -> None:
        posting = record.value
        ctx.execute(CHANGE, [posting.account, posting.cents])
        ctx.execute(NOTE, [posting.at, posting.account, posting.cents])


pipeline = Pipeline("own_tables")
pipeline.inject(TRANSFERS, JsonLines("transfers.jsonl"), timestamp=lambda transfer: transfer.at)
pipeline.add(FlatMap(sides, to=POSTINGS), TRANSFERS.spread())
pipeline.add(Book(), POSTINGS.by(lambda posting: posting.account))
