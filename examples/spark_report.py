"""A report of PySpark over a table that a pipeline keeps: the most frequent words of each length.

    echo '{"at": "2024-01-01T00:00:00Z", "text": "the cat and the old owl"}' > lines.jsonl
    millwheel run examples.word_count:pipeline --store .millwheel
    millwheel spark report examples.spark_report:report --store .millwheel --pipeline word_count

All tables of a report are read at one snapshot, while workers continue.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from millwheel.spark import Job


def report(job: Job) -> None:
    """Write the words to Parquet, and print them."""
    words = most_frequent(job.table("words"))
    words.write.mode("overwrite").parquet(str(job.output / "frequent_words"))
    words.show(truncate=False)


def most_frequent(words: DataFrame, number: int = 3) -> DataFrame:
    """The first words of each length, by how often they are seen."""
    order = Window.partitionBy("length").orderBy(F.desc("times"), "word")
    return (
        words.withColumn("length", F.length("word"))
        .withColumn("rank", F.row_number().over(order))
        .where(F.col("rank") <= number)
        .orderBy("length", "rank")
    )
