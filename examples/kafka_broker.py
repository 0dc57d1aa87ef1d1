"""Apache Kafka on this machine, without Docker: for the examples and the tests.

Needs Java 17 or newer, and Maven once: the first start copies Kafka's jars (44 MB) to
``~/.cache/millwheel/kafka-VERSION``, or to the directory in ``MILLWHEEL_KAFKA_JARS``::

    python -m examples.kafka_broker start DIR [--nodes 3] [--set KEY=VALUE ...]
    python -m examples.kafka_broker stop DIR
    python -m examples.kafka_broker remove DIR

``start`` prints the bootstrap servers. It starts the nodes that do not run, with their old ports
and data, and returns when each of them knows all others. A node takes about 150 MB of memory. It
listens on the loopback address alone, without passwords, and creates no topic by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

VERSION = "4.3.1"
START_SECONDS = 180.0
"""Time for all nodes to start; on an idle machine one takes some seconds."""
STOP_SECONDS = 30.0
CLUSTER_ID = "bWlsbHdoZWVsLWV4YW1wbA"

POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>millwheel</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""

SMALL = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
"""Options of the JVM for a small process that starts quickly."""


class KafkaBroker:
    """The nodes of a cluster, each a process with its files in a directory of its own."""

    def __init__(self, directory: Path, nodes: int = 1, settings: Iterable[str] = ()) -> None:
        """
        Args:
            directory: where everything is kept; an existing cluster there keeps its number of
                nodes.
            settings: further properties of all nodes, as KEY=VALUE.
        """
        self.directory = directory.resolve()
        self._file = self.directory / "cluster.json"
        self._started: dict[int, subprocess.Popen[bytes]] = {}
        if self._file.exists():
            self.ports: list[int] = json.loads(self._file.read_text())["ports"]
            self.settings: list[str] = json.loads(self._file.read_text())["settings"]
        else:
            self.ports = _free_ports(2 * nodes)
            self.settings = list(settings)

    @property
    def nodes(self) -> range:
        """The numbers of the nodes, from 1."""
        return range(1, len(self.ports) // 2 + 1)

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes."""
        return ",".join(map(self._address, self.nodes))

    def start(self) -> str:
        """Start the nodes that do not run; return the addresses when all of them are ready.

        Raises:
            SystemExit: there are no jars, or a node does not start; the message says what to do.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps({"ports": self.ports, "settings": self.settings}))
        classes = f"{jars()}/*"
        for node in self.nodes:
            if self.pid(node) is None:
                self._start(node, classes)
        deadline = time.monotonic() + START_SECONDS
        for node in self.nodes:
            while _known_nodes(self.ports[node - 1]) < len(self.nodes):
                if self.pid(node) is None or time.monotonic() > deadline:
                    log = (self._home(node) / "log").read_text(errors="replace")
                    raise SystemExit(f"Kafka's node {node} does not start:\n{log[-3000:]}")
                time.sleep(0.1)
        return self.bootstrap

    def signal(self, number: signal.Signals, nodes: Sequence[int] | None = None) -> None:
        """Send a signal to some nodes, or to all: SIGKILL is a crash, SIGSTOP a freeze."""
        for node in nodes or self.nodes:
            pid = self.pid(node)
            if pid is not None:
                os.kill(pid, number)
                if number == signal.SIGKILL:
                    self._wait_for_end(node)

    def stop(self) -> None:
        """Stop all nodes in order. All at once: a single one would wait for others to lead its
        partitions."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        for node in self.nodes:
            if not self._wait_for_end(node):
                self.signal(signal.SIGKILL, [node])

    def remove(self) -> None:
        """Stop all nodes, and delete all data."""
        self.signal(signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    def pid(self, node: int) -> int | None:
        """The process of a node that runs."""
        home, started = self._home(node), self._started.get(node)
        if started is not None:
            return started.pid if started.poll() is None else None
        try:
            pid = int((home / "pid").read_text())
            command = subprocess.run(
                ["ps", "-ww", "-o", "args=", "-p", str(pid)],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        except (OSError, ValueError, subprocess.CalledProcessError):
            return None
        return pid if str(home) in command else None

    def _home(self, node: int) -> Path:
        return self.directory / f"node{node}"

    def _address(self, node: int) -> str:
        return f"127.0.0.1:{self.ports[node - 1]}"

    def _start(self, node: int, classes: str) -> None:
        home = self._home(node)
        home.mkdir(exist_ok=True)
        properties = home / "server.properties"
        properties.write_text(self._properties(node))
        java = [_java(), *SMALL, "-cp", classes]
        with (home / "log").open("ab") as log:
            if not (home / "data").exists():
                format_ = [
                    "kafka.tools.StorageTool",
                    "format",
                    "-t",
                    CLUSTER_ID,
                    "-c",
                    str(properties),
                ]
                subprocess.run([*java, *format_], check=True, stdout=log, stderr=log)
            self._started[node] = subprocess.Popen(
                [*java, "-Xmx256m", "kafka.Kafka", str(properties)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=home,
            )  # fmt: skip
        (home / "pid").write_text(str(self._started[node].pid))

    def _properties(self, node: int) -> str:
        count = len(self.nodes)
        copies, in_sync = (3, 2) if count >= 3 else (1, 1)
        voters = [f"{n}@127.0.0.1:{self.ports[count + n - 1]}" for n in self.nodes]
        lines = {
            "process.roles": "broker,controller",
            "node.id": node,
            "controller.quorum.voters": ",".join(voters),
            "listeners": (
                f"PLAINTEXT://{self._address(node)},"
                f"CONTROLLER://127.0.0.1:{self.ports[count + node - 1]}"
            ),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": self._home(node) / "data",
            "auto.create.topics.enable": "false",
            "default.replication.factor": copies,
            "min.insync.replicas": in_sync,
            "group.initial.rebalance.delay.ms": 0,
            "log.cleaner.dedupe.buffer.size": 4 << 20,  # allocated at the start; by default 134 MB
        }
        for topic in ("offsets.topic", "transaction.state.log"):
            lines[f"{topic}.replication.factor"] = copies
            lines[f"{topic}.num.partitions"] = 4
        lines["transaction.state.log.min.isr"] = in_sync
        return "\n".join(
            [*(f"{name}={value}" for name, value in lines.items()), *self.settings, ""]
        )

    def _wait_for_end(self, node: int) -> bool:
        deadline = time.monotonic() + STOP_SECONDS
        while self.pid(node) is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


def jars() -> Path:
    """The directory of Kafka's jars, filled by Maven the first time.

    Raises:
        SystemExit: Maven is missing or fails.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    found = Path(os.environ.get("MILLWHEEL_KAFKA_JARS") or cache / "millwheel" / f"kafka-{VERSION}")
    if (found / ".complete").exists():
        return found
    if shutil.which("mvn") is None:
        raise SystemExit(f"Kafka's jars are not in {found}, and there is no mvn to copy them there")
    print(f"copying Kafka {VERSION} to {found}: 44 MB, a minute or two", file=sys.stderr)
    found.mkdir(parents=True, exist_ok=True)
    (found / "pom.xml").write_text(POM)
    copy = ["mvn", "-q", "-B", "-f", str(found / "pom.xml"), "dependency:copy-dependencies"]
    if subprocess.run([*copy, f"-DoutputDirectory={found}"], stdout=sys.stderr).returncode:
        raise SystemExit("Maven could not copy Kafka's jars: see above")
    (found / ".complete").touch()
    return found


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def _known_nodes(port: int) -> int:
    """Number of nodes that the node at a port knows; 0: it does not answer.

    The question is Metadata, version 1, about no topic; the answer begins with size, number and
    nodes.
    """
    question = struct.pack(">hhihi", 3, 1, 1, -1, 0)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as wire:
            wire.sendall(struct.pack(">i", len(question)) + question)
            _, _, nodes = struct.unpack(">iii", wire.makefile("rb").read(12))
    except (OSError, struct.error):
        return 0
    return int(nodes)


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Apache Kafka on this machine.")
    parser.add_argument("command", choices=("start", "stop", "remove"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    broker = KafkaBroker(given.directory, given.nodes, given.set)
    if given.command == "start":
        print(broker.start())
    else:
        getattr(broker, given.command)()


if __name__ == "__main__":
    main()
