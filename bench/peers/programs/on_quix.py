"""The payments in Quix Streams: a stateful `apply` from topic to topic, its state in RocksDB.

Quix Streams documentation, "Configuration" ("Processing Guarantees") and "Stateful Processing":
with `processing_guarantee="exactly-once"` outputs, changes of state (the changelog topic) and
offsets are committed in one Kafka transaction, every `commit_every` records or `commit_interval`
seconds. A record is done when a consumer of committed records can see its balance. Whether Kafka's
brokers fsync is the broker's setting; by default they leave it to the operating system.

`batch`: exactly once, a commit for as many records as in millwheel's bundles.
`default`: at least once, a commit every 5 s.
`latency`: exactly once, a commit for each record.
"""

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
    commits = {"batch": options.batch, "latency": 1}
    exact = {
        "processing_guarantee": "exactly-once",
        "commit_every": commits.get(options.setting),
    }
    application = Application(
        broker_address=options.kafka,
        consumer_group=options.payments,
        auto_offset_reset="earliest",
        state_dir=str(options.out / "state"),
        loglevel="ERROR",
        **(exact if options.setting in commits else {}),
    )
    payments = application.topic(options.payments, value_deserializer="json")
    balances = application.topic(options.balances, value_serializer="json")
    stream = application.dataframe(payments)
    stream.apply(keep_balance, stateful=True).to_topic(balances)
    application.run()


if __name__ == "__main__":
    main()
