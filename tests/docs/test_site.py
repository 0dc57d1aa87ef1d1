"""The docs site is built without a warning: each link and anchor leads somewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 300

pytestmark = pytest.mark.pages


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site, without the pages for models, which take as long again. Another
    test runs the notebooks (test_notebooks.py)."""
    found = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [
            *(sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"),
            *("-D", "nb_execution_mode=off", "-D", "llms_txt_enabled=0", "docs", found),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return found


def test_the_site_has_each_kind_of_page(site: Path) -> None:
    for kind in ("start", "howto", "reference", "why"):
        assert (site / kind / "index.html").is_file()


def test_the_api_links_to_its_types(site: Path) -> None:
    page = (site / "reference/api/millwheel.pipeline.html").read_text("utf-8")
    assert 'href="millwheel.settings.html#millwheel.settings.Settings"' in page
    assert '<div class="highlight-python' in page
