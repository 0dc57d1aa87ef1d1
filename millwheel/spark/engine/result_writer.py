"""The data source that Spark's tasks write the results of a batch to: a staging table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource

from millwheel.spark.engine.stream_rows import decode_rows
from millwheel.spark.staging import StagingWriter
from millwheel.spark.store_sessions import store_url

FORMAT: Final = "millwheel_results"
PARCELS: Final = "rows"
"""The column of Spark's rows that has the results."""
COLUMNS: Final = ("stream", "value", "seq", "micros")
"""The columns of the staging table."""


class ResultSink(DataSource):
    """Options: ``store``, ``pipeline``, ``staging`` (the table), ``batch``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: Any, overwrite: bool) -> ResultWriter:
        options = self.options
        table = options["pipeline"], options["staging"]
        return ResultWriter(store_url(options), table, options["batch"])


class ResultWriter(StagingWriter):
    def __init__(self, store: str, table: tuple[str, str], batch: str) -> None:
        super().__init__(store, table, batch, COLUMNS)

    def rows(self, batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
        for parcel in batch.column(PARCELS).to_pylist():
            for row in decode_rows(parcel):
                yield row.stream, row.value.decode(), row.seq, row.micros
