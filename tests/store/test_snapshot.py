"""`millwheel.store.snapshot`: what a block of statements reads, at the ends of time too."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from millwheel.core.model import MAX_TIME, MIN_TIME, from_micros
from millwheel.store.snapshot import snapshot
from tests.support.store_sites import START, Owner, PostgresSite


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    ("watermark", "read"),
    [
        (MIN_TIME, datetime.min.replace(tzinfo=UTC)),
        (START, from_micros(START)),
        (MAX_TIME, datetime.max.replace(tzinfo=UTC)),
    ],
)
async def test_watermarks_are_read_before_the_first_record_and_after_the_last(
    postgres: PostgresSite, watermark: int, read: datetime, binary: bool
) -> None:
    owner = await Owner.take(postgres.store)
    for interval in (owner.injector, *owner.intervals):
        await owner.write(
            owner.commit(interval, input_watermark=watermark, low_watermark=watermark)
        )
    with (
        snapshot(postgres.schema.url, postgres.schema.name) as connection,
        connection.cursor(binary=binary) as cursor,
    ):
        cursor.execute("SELECT DISTINCT low_watermark FROM watermarks")
        assert cursor.fetchall() == [(read,)]
