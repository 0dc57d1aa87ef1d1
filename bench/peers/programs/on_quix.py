"""The payments in Quix Streams: a stateful `apply` from topic to topic, its state in RocksDB.

Quix Streams documentation, "Configuration" ("Processing Guarantees") and "Stateful Processing": with
`processing_guarantee="exactly-once"` outputs, changes of state (the changelog topic) and offsets are
committed in one Kafka transaction, every `commit_every` records or `commit_interval` seconds. A record
is done when a consumer of committed records can see its balance. Whether Kafka's brokers fsync is the
broker's setting; by default they leave it to the operating system.

`batch`: exactly once, a commit for as many records as in millwheel's bundles.
`default`: at least once, a commit every 5 s.
"""

import kafka_topics
import marks
from quixstreams import Application


def keep_balance(payment, state):
    """Update the state, and return the new balance."""
    payments = state.get("payments", 0) + 1
    total = state.get("total", 0) + payment["amount"]
    state.set("payments", payments)
    state.set("total", total)
    return {"account": payment["account"], "payments": payments, "total": total}


def main():
    options = marks.options()
    topics = kafka_topics.Topics(options)
    exact = {"processing_guarantee": "exactly-once", "commit_every": options.batch}
    application = Application(
        broker_address=options.kafka,
        consumer_group=topics.name,
        auto_offset_reset="earliest",
        state_dir=str(options.out / "state"),
        loglevel="ERROR",
        **(exact if options.setting == "batch" else {}),
    )
    payments = application.topic(topics.payments, value_deserializer="json")
    balances = application.topic(topics.balances, value_serializer="json")
    stream = application.dataframe(payments)
    stream.apply(keep_balance, stateful=True).to_topic(balances)
    topics.watch(on_end=application.stop)
    application.run()
    topics.finish()


if __name__ == "__main__":
    main()
