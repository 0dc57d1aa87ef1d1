"""Mistakes on the command line, in modules, in files, and packages that are missing."""

from __future__ import annotations

from tests.mistakes.entries import RUN, Failure, Mistake, Refusal, ShownBy
from tests.mistakes.programs import IMPORTS, ROWS, TABLE, without_package

INBOX = (
    ('JsonLines("orders.jsonl")', "Inbox()"),
    ("import Computation", "import Inbox, Computation"),
)
FILES = ("import Computation", "import JsonLinesFiles, Computation")
LIMITED = "import resource\n\nresource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))\n"
"""No file grows beyond this size: as on a full disk, but nothing waits for room."""
TO_FILES = (TABLE, 'JsonLinesFiles("totals")')

ENTRIES: tuple[Mistake, ...] = (
    ShownBy(
        52,
        "a time with a request of HTTP that does not count",
        ("comes from its values", "at=2026-01-31T10:00:00Z"),
        test="inbox/test_ingest.py::test_a_time_that_would_not_count_is_refused",
    ),
    Failure(
        61,
        "the port of --http is in use",
        ("cannot listen for HTTP on 127.0.0.1:{port}: Address already in use", "Give another HOST"),
        command=f"{RUN} --http 127.0.0.1:{{port}}",
        code=2,
    ),
    Failure(
        62,
        "the port of --listen is in use",
        (
            "cannot listen for other workers on 127.0.0.1:{port}: Address already in use",
            "Give another HOST:PORT with --listen",
        ),
        command="worker shop:pipeline --listen 127.0.0.1:{port}",
        code=2,
    ),
    Failure(
        63,
        "--ingest without an inbox",
        ("pipeline 'wheel' takes no records over HTTP: inject an Inbox() into a stream",),
        command=f"{RUN} --ingest 127.0.0.1:0",
        code=2,
    ),
    Failure(
        64,
        "--ingest without its package",
        ("--ingest needs a web server: pip install 'millwheel-engine[http]'",),
        changes=(without_package("uvicorn"), *INBOX),
        command=f"{RUN} --ingest 127.0.0.1:0",
        code=2,
    ),
    Refusal(
        65,
        "a command of Spark without its package",
        ("Spark needs the package pyspark", "pip install 'millwheel-engine[spark]'"),
        changes=(without_package("pyspark"),),
        command="spark run shop:pipeline --checkpoint there",
    ),
    Refusal(
        66,
        "Kafka without its package",
        ("Kafka needs the package aiokafka: pip install 'millwheel-engine[kafka]'",),
        changes=(
            without_package("aiokafka"),
            ("from msgspec", "from millwheel.kafka import KafkaTopic\nfrom msgspec"),
        ),
        at="import KafkaTopic",
    ),
    Refusal(
        67,
        "no such module",
        ("there is no module 'shp' in ", "Did you mean shop?"),
        command="run shp:pipeline",
    ),
    Refusal(
        68,
        "no such pipeline in the module",
        ("module 'shop' has no 'pipelin'", "Did you mean pipeline?"),
        command="run shop:pipelin",
    ),
    Refusal(
        69,
        "the name of the module alone",
        ("'shop' is not of the form MODULE:PIPELINE, as in wordcount:pipeline",),
        command="run shop",
    ),
    Refusal(
        70,
        "no such command",
        ("no such command: rn. Did you mean run?", "See: millwheel --help"),
        command="rn shop:pipeline",
    ),
    Refusal(
        71,
        "no such option",
        ("no such option: --keepopen. Did you mean --keep-open?", "See: millwheel run --help"),
        command=f"{RUN} --keepopen",
    ),
    Refusal(
        72,
        "the module imports a package that is not there",
        ("importing 'shop' failed: No module named 'pandsa'",),
        changes=(("from msgspec", "import pandsa\nfrom msgspec"),),
        at="import pandsa",
        code=6,
    ),
    Refusal(
        73,
        "the module has an error of syntax",
        ("importing 'shop' failed", 'shop.py", line 8', "SyntaxError: expected ':'"),
        changes=(("class Order(Struct):", "class Order(Struct)"),),
        code=6,
    ),
    Failure(
        75,
        "a row is no JSON",
        ("stream 'orders', orders.jsonl, line 4", "value '{{'", "Correct the file and start again"),
        rows=ROWS + "{\n",
        code=5,
    ),
    Failure(
        76,
        "a field of a row has another type",
        ("orders.jsonl, line 2: Expected `int`, got `str` - at `$.cents`", "Correct the file"),
        rows=ROWS.replace("90", '"90"'),
        code=5,
    ),
    Failure(
        77,
        "the file of a source is missing",
        ("order.jsonl: there is no such file (/", "Did you mean orders.jsonl?"),
        changes=(("orders.jsonl", "order.jsonl"),),
        code=5,
    ),
    Failure(
        78,
        "the file of a source cannot be opened",
        ("loop.jsonl: cannot be opened: Too many levels of symbolic links",),
        changes=(("orders.jsonl", "loop.jsonl"),),
        code=5,
    ),
    Failure(
        80,
        "the directory of a sink cannot be made",
        ("/proc/totals/part-", "cannot be opened", "Mend that, and start again: nothing is lost"),
        changes=(FILES, (TABLE, 'JsonLinesFiles("/proc/totals")')),
        code=11,
    ),
    Failure(
        81,
        "no room for the file of a sink",
        ("totals/part-", "cannot be written: File too large. Mend that, and start again"),
        changes=(FILES, TO_FILES, (IMPORTS, LIMITED.format(40) + IMPORTS)),
        code=11,
    ),
    Refusal(
        104,
        "an address without a port",
        ("'localhost' is not of the form HOST:PORT, as in 127.0.0.1:9464", "picks a free port"),
        command=f"{RUN} --http localhost",
    ),
)
