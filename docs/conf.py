"""Sphinx builds the site from these pages: `make docs`. Nothing is fetched, then or by readers."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "pna"
author = "the pna contributors"
copyright = author
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "mathml", "offline"]
exclude_patterns = ["site", "jupyter_execute", "upstream", "_ext"]

html_theme = "furo"
html_title = "pna"
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3  # links such as data.md#what-they-are

nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True

default_role = "literal"  # docstrings have single backticks around code
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
napoleon_use_rtype = False
add_module_names = False
