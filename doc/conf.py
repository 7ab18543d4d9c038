"""The configuration of Sphinx for the site, which `make doc` builds.

Pages are MyST markdown. The extensions in `_ext` generate parts of pages.
"""

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
smartquotes = False  # commands have "--" and quotes, which readers copy

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "placement-compute"
html_show_sourcelink = False
html_copy_source = False

# Readers also use the site without a network: it contains all files that its pages load, and the search runs
# in the browser.
html_theme_options = {"navigation_with_keys": True}
html_search_scorer = str(Path(__file__).with_name("search.js"))  # Sphinx opens it from the working directory

# `make doc-links` requests the links to other sites; every build checks the links within the site.
linkcheck_timeout = 20
linkcheck_retries = 2
