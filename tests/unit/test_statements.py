"""Names kept apart from the schema's definition agree with it."""

import subprocess
import sys

import pytest

from millwheel.store.postgres.schema import metadata
from millwheel.store.postgres.statements import TABLES


def test_the_names_are_those_of_the_schema() -> None:
    assert set(TABLES) == set(metadata.tables)


@pytest.mark.process
def test_running_needs_no_sqlalchemy() -> None:
    code = "import sys, millwheel.services.run; sys.exit('sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
