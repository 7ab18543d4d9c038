"""How Sphinx builds the site: `make doc`. Pages are MyST markdown; what is generated comes from `_ext`."""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "placement-compute"
version = release = installed_version("placement-compute")

extensions = ["myst_parser", "generated", "truth"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "changes"]
nitpicky = True
smartquotes = False  # commands have "--" and quotes that are to be copied

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "placement-compute"
html_show_sourcelink = False
html_copy_source = False

# The site is read offline too: everything that it loads is in it, and its search runs in the browser.
html_theme_options = {"navigation_with_keys": True}
html_search_scorer = str(Path(__file__).with_name("search.js"))  # Sphinx opens it from the working directory

# `make doc-links` asks for the links that leave the site; those within it are checked by every build.
linkcheck_timeout = 20
linkcheck_retries = 2
