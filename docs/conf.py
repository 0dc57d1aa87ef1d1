"""The docs site: ``make docs`` builds it. Warnings are errors."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "millwheel"
author = "the millwheel authors"
copyright = f"2026, {author}"
html_title = "millwheel"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_llm.txt",
    "docs_site",
    "page_pictures",
]
exclude_patterns = ["_ext", "deploy/Dockerfile*"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
smartquotes = False
default_role = "py:obj"  # docstrings write `name` for code; a name of the API becomes a link
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": False, "show-inheritance": True}
napoleon_use_ivar = True  # attributes that have a text of their own are listed once
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

nb_execution_mode = "cache"
nb_execution_raise_on_error = True

llms_txt_description = "A per-record stream engine in Python with its state in Postgres"
llms_txt_suppress_unknown_node_warnings = ["toctree", "abbreviation"]

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
templates_path: list[str] = []
copybutton_exclude = ".linenos, .gp, .go"  # the prompt and the output of a console
