"""The payments in Bytewax from topic to topic: a stateful map between its Kafka source and sink.

Bytewax documentation, "Recovery" and "bytewax.connectors.kafka": the offset and the state are in
the recovery store (SQLite) at the end of each epoch. Its sink writes without transactions and waits
for the brokers' answers, so after a crash balances come twice: at least once. A record is done when
a consumer can see its balance.

`batch`: an epoch for each batch, with as many records as millwheel's bundles.
`default`: batches of 1,000 and epochs of 10 s, the defaults.
`latency`: batches of one record, an epoch each.
"""

import json
from datetime import timedelta

import marks
from bytewax import operators as op
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main
from on_bytewax import keep_balance


def message(balance):
    """The message of a balance."""
    return KafkaSinkMessage(str(balance["account"]).encode(), json.dumps(balance).encode())


def dataflow(options):
    """Build the dataflow from topic to topic."""
    sizes = {"batch": options.batch, "default": 1000, "latency": 1}
    source = KafkaSource([options.kafka], [options.payments], batch_size=sizes[options.setting])
    flow = Dataflow("payments")
    messages = op.input("messages", flow, source)
    payments = op.map("decode", messages, lambda found: json.loads(found.value))
    keyed = op.key_on("account", payments, lambda payment: str(payment["account"]))
    balances = op.stateful_map("balance", keyed, keep_balance)
    out = op.map("encode", op.key_rm("unkey", balances), message)
    op.output("out", out, KafkaSink([options.kafka], options.balances))
    return flow


def main():
    options = marks.options()
    directory = options.out / "recovery"
    directory.mkdir()
    init_db_dir(directory, 1)
    epoch = timedelta(seconds=10) if options.setting == "default" else timedelta(0)
    recovery = RecoveryConfig(directory, timedelta(0))
    cli_main(dataflow(options), epoch_interval=epoch, recovery_config=recovery)


if __name__ == "__main__":
    main()
