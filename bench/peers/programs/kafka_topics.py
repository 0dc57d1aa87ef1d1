"""A topic with the payments, and a consumer of committed balances; for the peers that need Kafka."""

import threading
import uuid

import marks
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic


class Topics:
    """A topic filled with payments, and an empty one for balances, one partition each."""

    def __init__(self, options):
        self._options = options
        self.name = f"bench-{uuid.uuid4().hex[:8]}"
        self.payments, self.balances = f"{self.name}-payments", f"{self.name}-balances"
        admin = AdminClient({"bootstrap.servers": options.kafka})
        made = admin.create_topics(
            [NewTopic(name, num_partitions=1) for name in (self.payments, self.balances)]
        )
        for future in made.values():
            future.result(30)
        self._fill()
        self._answers = []
        self._ended = threading.Event()

    def _fill(self):
        producer = Producer({"bootstrap.servers": self._options.kafka, "linger.ms": 50})
        with self._options.input.open("rb") as lines:
            for line in lines:
                account = line.split(b'"account":')[1].split(b",")[0]
                while True:
                    try:
                        producer.produce(self.payments, line.strip(), key=account)
                        break
                    except BufferError:
                        producer.poll(0.1)
        producer.flush()

    def watch(self, on_end):
        """Read the balances as they are committed, print the marks, then call `on_end`."""
        threading.Thread(target=self._watch, args=(on_end,), daemon=True).start()

    def _watch(self, on_end):
        consumer = Consumer(
            {
                "bootstrap.servers": self._options.kafka,
                "group.id": f"{self.name}-watch",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([self.balances])
        while len(self._answers) < self._options.records:
            before = len(self._answers)
            found = consumer.consume(1000, timeout=0.1)
            self._answers += [m.value().decode() for m in found if m.error() is None]
            if before < self._options.warm <= len(self._answers):
                marks.begin(len(self._answers))
        marks.end()
        self._ended.set()
        consumer.close()
        on_end()

    def finish(self):
        """Write the balances that were read."""
        self._ended.wait()
        (self._options.out / "balances.jsonl").write_text("\n".join(self._answers) + "\n")
