from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millwheel.errors import UsageError
from millwheel.spark.engine.stream_rows import micros_of_watermark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_elsewhere(checkpoint: str) -> bool:
    """Only Spark can read a checkpoint at a URL."""
    return "://" in checkpoint


def is_used(checkpoint: str) -> bool:
    """A checkpoint that is elsewhere is taken for a new one."""
    return not is_elsewhere(checkpoint) and (Path(checkpoint) / "offsets").exists()


def lines_of(spark: SparkSession, checkpoint: str, file: str) -> list[str] | None:
    """None: there is no such file."""
    from pyspark.errors import AnalysisException

    if not is_elsewhere(checkpoint) and not (Path(checkpoint) / file).exists():
        return None
    try:
        return [row.value for row in spark.read.text(f"{checkpoint}/{file}").collect()]
    except AnalysisException:
        return None


def offset_of(spark: SparkSession, checkpoint: str, batch: int) -> dict[str, Any] | None:
    """The offset of the source at the end of a batch; None: the batch was not begun.

    `UsageError` if the state of the checkpoint cannot be read by this version.
    """
    lines = lines_of(spark, checkpoint, f"offsets/{batch}")
    if lines is None:
        return None
    offset: dict[str, Any] = json.loads(lines[2])
    refuse_former_checkpoint(checkpoint, offset)
    return offset


def watermark_of(spark: SparkSession, checkpoint: str, batch: int) -> int | None:
    """The low watermark of a batch that was begun, in microseconds; None: nothing was promised."""
    lines = lines_of(spark, checkpoint, f"offsets/{batch}")
    assert lines is not None
    return micros_of_watermark(json.loads(lines[1])["batchWatermarkMs"])


def refuse_former_checkpoint(checkpoint: str, offset: Mapping[str, Any]) -> None:
    if "buckets" not in offset:
        raise UsageError(
            f"the checkpoint {checkpoint} was made by an earlier version of millwheel, which kept "
            "the state of each key apart, and this version does not read it: with the earlier one, "
            "move the pipeline back to the engine (millwheel spark return); with this one, to "
            "Spark again (millwheel spark take), with another checkpoint"
        )


def query_of(spark: SparkSession, checkpoint: str) -> str | None:
    """None: the checkpoint is missing, or empty."""
    lines = lines_of(spark, checkpoint, "metadata")
    return str(json.loads(lines[0])["id"]) if lines else None


def is_finished(spark: SparkSession, checkpoint: str, batch: int) -> bool:
    """The state of a finished batch is in the checkpoint."""
    return lines_of(spark, checkpoint, f"commits/{batch}") is not None


def refuse_used_checkpoint(checkpoint: str) -> None:
    if is_used(checkpoint):
        raise UsageError(
            f"the checkpoint {checkpoint} is that of another query, or of an earlier one: give "
            "another directory, or delete it"
        )
