"""The payments in PyFlink: a keyed process function over a file, its balances to files.

Apache Flink documentation, "Checkpointing" and "State Backends": the last checkpoint holds the
durable state, and `FileSink` makes its files final with it, so a record is done when the file with
its balance is final. The shortest possible interval is 10 ms, which is also about the time
millwheel takes for a bundle at full load. The documentation recommends RocksDB with incremental
checkpoints for large state. "Python Execution Mode": functions run in the JVM's threads in `thread`
mode, otherwise in processes of Beam; bundles of Python calls are as large as millwheel's.
Checkpoints and files on a local disk are not fsynced, or not all of them: done records survive the
end of the process, but not a loss of power.

`batch`: checkpoints every 10 ms, Python in processes. `thread`: the same, Python in threads.
`second`: checkpoints every second. `default`: no options: state on the heap, no checkpoints, and
therefore nothing durable before the end.
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
    """Adds up payments, and outputs the new balance."""

    def open(self, runtime_context):
        pair = Types.TUPLE([Types.LONG(), Types.LONG()])
        self._account = runtime_context.get_state(ValueStateDescriptor("account", pair))

    def process_element(self, value, ctx):
        payments, total = self._account.value() or (0, 0)
        payments, total = payments + 1, total + value[1]
        self._account.update((payments, total))
        yield json.dumps({"account": value[0], "payments": payments, "total": total})


def decode(line):
    """Decode account and amount."""
    payment = json.loads(line)
    return payment["account"], payment["amount"]


def configuration(options):
    """Build the configuration of a setting."""
    made = Configuration()
    made.set_string("restart-strategy.type", "none")  # report errors instead of retrying for ever
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
        "python.state.cache-size": "100000",  # the default of 1,000 misses for most keys
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
        watch = threading.Thread(target=mark_by_lines, args=(balances, options), daemon=True)
    else:
        watch = marks.Watch(balances, "part-*", options.warm)
    watch.start()
    environment.execute("payments")
    watch.join()
    marks.end()


def mark_by_lines(directory: Path, options):
    """Print the first mark by the lines in all files, final or not."""
    waiting = threading.Event()
    while (lines := written(directory)) < options.warm:
        waiting.wait(0.05)
    marks.begin(lines)


def written(directory: Path):
    """Count the lines in all files."""
    return sum(path.read_bytes().count(b"\n") for path in directory.rglob("*part-*"))


if __name__ == "__main__":
    main()
