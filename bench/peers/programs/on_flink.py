"""The payments in PyFlink: a keyed process function over a file, its balances to files.

Apache Flink documentation, "Checkpointing" and "State Backends": what is durable is what the last
checkpoint holds, and `FileSink` makes its files final with it, so a record is done when the file with
its balance is final. The interval can be no shorter than 10 ms, which is also about what millwheel
needs for a bundle at full load; RocksDB with incremental checkpoints is what the documentation
recommends for large state. "Python Execution Mode": functions run in the JVM's own threads in `thread`
mode, in processes of Beam otherwise; bundles of Python calls are as large as millwheel's. Checkpoints
and files on a local disk are not fsynced, or not all of them: what is done survives the end of the
process, not the loss of power.

`batch`: checkpoints every 10 ms, Python in processes. `thread`: the same, Python in threads.
`second`: checkpoints every second. `default`: nothing is set: state on the heap, no checkpoints, and
so nothing durable before the end.
"""

import json
import threading
from pathlib import Path

import marks
from pyflink.common import Configuration, Types, WatermarkStrategy
from pyflink.common.serialization import Encoder
from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import (
    FileSink,
    FileSource,
    RollingPolicy,
    StreamFormat,
)
from pyflink.datastream.state import ValueStateDescriptor

INTERVALS = {"batch": "10ms", "thread": "10ms", "second": "1s"}


class KeepBalance(KeyedProcessFunction):
    """Adds up, and tells the new balance."""

    def open(self, runtime_context):
        pair = Types.TUPLE([Types.LONG(), Types.LONG()])
        self._account = runtime_context.get_state(ValueStateDescriptor("account", pair))

    def process_element(self, value, ctx):
        payments, total = self._account.value() or (0, 0)
        payments, total = payments + 1, total + value[1]
        self._account.update((payments, total))
        yield json.dumps({"account": value[0], "payments": payments, "total": total})


def decode(line):
    """Account and amount."""
    payment = json.loads(line)
    return payment["account"], payment["amount"]


def configuration(options):
    """What the setting sets."""
    made = Configuration()
    made.set_string("restart-strategy.type", "none")  # an error is told, not tried again for ever
    interval = INTERVALS.get(options.setting)
    if interval is None:
        return made
    for name, value in {
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.interval": interval,
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": (options.out / "checkpoints").as_uri(),
        "python.fn-execution.bundle.size": str(options.batch),
        "python.fn-execution.bundle.time": "10",
        "python.state.cache-size": "100000",  # 1,000 by default: a call for the state of most keys
        "python.execution-mode": "thread" if options.setting == "thread" else "process",
    }.items():
        made.set_string(name, value)
    return made


def main():
    options = marks.options()
    environment = StreamExecutionEnvironment.get_execution_environment(configuration(options))
    environment.set_parallelism(options.cores)
    source = FileSource.for_record_stream_format(
        StreamFormat.text_line_format(), str(options.input)
    ).build()
    balances = options.out / "balances"
    sink = (
        FileSink.for_row_format(str(balances), Encoder.simple_string_encoder())
        .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
        .build()
    )
    (
        environment.from_source(source, WatermarkStrategy.no_watermarks(), "payments")
        .set_parallelism(1)
        .map(decode, output_type=Types.TUPLE([Types.LONG(), Types.LONG()]))
        .set_parallelism(1)
        .key_by(lambda payment: payment[0], key_type=Types.LONG())
        .process(KeepBalance(), output_type=Types.STRING())
        .sink_to(sink)
    )
    if options.setting == "default":
        watch = threading.Thread(target=mark_what_is_written, args=(balances, options), daemon=True)
    else:
        watch = marks.Watch(balances, "part-*", options.warm)
    watch.start()
    environment.execute("payments")
    watch.join()
    marks.end()


def mark_what_is_written(directory: Path, options):
    """Mark the beginning by what is in the files, final or not."""
    waiting = threading.Event()
    while (lines := written(directory)) < options.warm:
        waiting.wait(0.05)
    marks.begin(lines)


def written(directory: Path):
    """Lines in all files."""
    return sum(path.read_bytes().count(b"\n") for path in directory.rglob("*part-*"))


if __name__ == "__main__":
    main()
