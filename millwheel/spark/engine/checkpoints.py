from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from millwheel.errors import UsageError

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
