"""``python -m bench.pictures [--record]``: draw the pictures of the docs.

``--record`` runs the program of ``docs/start/event-time.md`` again first.
"""

from __future__ import annotations

import argparse

import msgspec

from bench.pictures import low_watermark, overview
from bench.pictures.svg import FOLDER
from bench.pictures.tutorial_run import RECORDED, TutorialRun, record


def drawn() -> dict[str, str]:
    """All pictures, by the names of their files."""
    run = msgspec.json.decode(RECORDED.read_bytes(), type=TutorialRun)
    return {"low-watermark": low_watermark.draw(run), "overview": overview.draw()}


def main() -> None:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(prog="python -m bench.pictures")
    parser.add_argument("--record", action="store_true", help="run the tutorial's program again")
    if parser.parse_args().record:
        encoded = msgspec.json.encode(record())
        RECORDED.write_bytes(msgspec.json.format(encoded, indent=1) + b"\n")
    for name, picture in drawn().items():
        (FOLDER / f"{name}.svg").write_text(picture, "utf-8")


if __name__ == "__main__":
    main()
