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
    assert '<span class="doc">Time</span></a>' in page, "a page that a docstring names is a link"


def test_a_value_without_a_text_has_not_that_of_its_type(site: Path) -> None:
    page = (site / "reference/api/millwheel.html").read_text("utf-8")
    assert 'id="millwheel.Key"' in page
    assert "Create a new string object" not in page


def test_long_names_break_after_their_parts(site: Path) -> None:
    page = (site / "reference/metrics.html").read_text("utf-8")
    assert "millwheel_<wbr>dead_<wbr>letters_<wbr>total" in page


def test_diagrams_of_states_are_tables(site: Path) -> None:
    page = (site / "why/protocols.html").read_text("utf-8")
    assert "stateDiagram" not in page
    assert "<p>all were seen</p>" in page


def test_a_command_is_copied_without_its_prompt_and_output(site: Path) -> None:
    script = (site / "_static/copybutton.js").read_text("utf-8")
    assert "exclude = '.linenos, .gp, .go'" in script
    page = (site / "howto/run/systemd.html").read_text("utf-8")
    assert '<span class="gp"># </span>systemctl' in page, "root has a prompt as well"
