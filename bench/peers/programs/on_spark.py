"""The payments in Spark Structured Streaming: `transformWithState` in Python, RocksDB, JSON files.

Structured Streaming Programming Guide, "Fault Tolerance Semantics" and "transformWithState":
offsets and state are written to the checkpoint with each micro-batch, and a record is done when its
batch is committed. The file source reads whole files, so the input consists of files of one batch
each, with `maxFilesPerTrigger=1`. For short batches the guide recommends changelog checkpointing
("RocksDB State Store Changelog Checkpointing"), and for small state as many shuffle partitions as
cores. Checkpoints on a local disk go through Hadoop's local file system, which does not fsync: done
records survive the end of the process, but not a loss of power.

`batch`: micro-batches as large as millwheel's bundles. `large`: fifty times as large. `latency`: as
`batch`, but records arrive at a fixed rate, and all available records form a micro-batch.
`default`: only the state store is set, which `transformWithState` requires; all available input is
one micro-batch.
"""

import os
import sys
import threading
from itertools import islice

import marks
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

PAYMENT = "at STRING, account LONG, amount LONG"
BALANCE = "account LONG, payments LONG, total LONG"
PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class KeepBalance(StatefulProcessor):
    """Adds up payments, and outputs the new balance."""

    def init(self, handle):
        self._account = handle.getValueState("account", "payments LONG, total LONG")

    def handleInputRows(self, key, rows, timerValues):
        payments, total = self._account.get() if self._account.exists() else (0, 0)
        for row in rows:
            payments += 1
            total += row.amount
            yield Row(account=key[0], payments=payments, total=total)
        self._account.update((payments, total))

    def close(self):
        pass


class Done(StreamingQueryListener):
    """Counts committed records."""

    arrivals = None
    """The `marks.Arrivals` to notify of records done after the warm-up."""

    def __init__(self, warm, records):
        self._warm = warm
        self._records = records
        self._rows = 0
        self._begun = False
        self.warm = threading.Event()
        self.all = threading.Event()

    def onQueryStarted(self, event):
        pass

    def onQueryProgress(self, event):
        self._rows += event.progress.numInputRows
        if self.arrivals is not None:
            self.arrivals.done(self._rows - self._warm)
        if self._rows >= self._warm and not self._begun:
            self._begun = True
            marks.begin(self._rows)
            self.warm.set()
        if self._rows >= self._records:
            self.all.set()

    def onQueryIdle(self, event):
        pass

    def onQueryTerminated(self, event):
        if event.exception:
            print(event.exception, file=sys.stderr)
            os._exit(1)


def session(options):
    """Create the Spark session of a setting."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master(f"local[{options.cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.streaming.stateStore.providerClass", PROVIDER)
    )
    if options.setting != "default":
        builder = builder.config("spark.sql.shuffle.partitions", options.cores).config(
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true"
        )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def start(spark, options, **reading):
    """Start the query over the files in the directory `in`."""
    payments = spark.readStream.schema(PAYMENT).options(**reading).json(str(options.out / "in"))
    balances = payments.groupBy("account").transformWithState(
        statefulProcessor=KeepBalance(),
        outputStructType=BALANCE,
        outputMode="append",
        timeMode="none",
    )
    return (
        balances.writeStream.format("json")
        .option("checkpointLocation", str(options.out / "checkpoint"))
        .outputMode("append")
        .start(str(options.out / "balances"))
    )


def place(options, number, lines):
    """Add lines to the source as one file, atomically."""
    directory = options.out / "in"
    directory.mkdir(exist_ok=True)
    part = options.out / f"{number:06}.part"
    part.write_text("".join(lines))
    os.utime(part, (number, number))  # the file source orders files by age
    part.rename(directory / f"{number:06}.jsonl")


def main():
    options = marks.options()
    spark = session(options)
    done = Done(options.warm, options.records)
    spark.streams.addListener(done)
    size = {"batch": options.batch, "large": 50 * options.batch}.get(options.setting)
    with options.input.open() as lines:
        place(options, 1, islice(lines, options.warm))
        rest = list(islice(lines, options.records - options.warm))
    query = start(spark, options, **({"maxFilesPerTrigger": 1} if size else {}))
    if options.setting == "latency":
        done.warm.wait()
        done.arrivals = marks.Arrivals(
            options.rate,
            len(rest),
            lambda group: place(options, group[0] + 2, rest[group[0] : group[-1] + 1]),
        )
        done.arrivals.start()
    elif size is None:
        done.warm.wait()
        place(options, 2, rest)
    else:
        for number, first in enumerate(range(0, len(rest), size), 2):
            place(options, number, rest[first : first + size])
    done.all.wait()
    if options.setting == "latency":
        done.arrivals.write(options.out)
    marks.end()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
