"""A Sphinx extension that fills pages with generated text.

A page has a mark such as `<!-- generated: options placement -->` on a line of its own. The first word is the
name of a generator, the other words are its arguments. Before Sphinx parses the page, the extension replaces
the mark by the markdown that the generator returns. Generators are plain functions that take words and return
markdown; they are in the other modules of this folder. They read the installed packages, their sources and
the description of the API, but no pages.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import alerts
import commands
import deviations
import floors
import glossary
import notes
import options
import policies
import rest
import sequences
import sources
import supported
import tables
import threads

ROOT: Final = Path(__file__).parents[2]

GENERATORS: Final[Mapping[str, Callable[..., str]]] = {
    "options": options.page,
    "commands": commands.page,
    "policies": policies.page,
    "metrics": lambda package: sources.metrics_page(ROOT / package),
    "messages": lambda package: sources.messages_page(
        ROOT / package, ROOT / "doc" / "reference" / "messages.yaml"
    ),
    "alerts": lambda group: alerts.page(ROOT / "etc/prometheus/placement-compute.rules.yaml", group),
    "deviations": lambda: deviations.page(ROOT / "doc" / "reference" / "deviations.yaml"),
    "floors": floors.page,
    "glossary": lambda: glossary.page(ROOT / "doc" / "developer" / "glossary.yaml"),
    "tables": lambda: tables.page(ROOT / "doc" / "developer" / "data-model.yaml"),
    "flows": lambda: sequences.page(ROOT / "doc" / "developer" / "flows.yaml"),
    "threads": threads.page,
    "rest": lambda: rest.page(ROOT / "api-ref"),
    "notes": lambda: notes.page(ROOT),
    "supported": lambda: supported.page(ROOT / "doc" / "reference" / "supported.yaml"),
}

_MARK: Final = re.compile(r"^<!-- generated: (\w+) *(.*?) *-->$", re.MULTILINE)


def expand(text: str) -> str:
    """Return a page with each of its marks replaced by generated text.

    :raises KeyError: there is no such generator.
    """
    return _MARK.sub(lambda mark: GENERATORS[mark[1]](*mark[2].split()), text)


def setup(app: Any) -> dict[str, bool]:
    """Register the extension; Sphinx calls this function."""

    def read(app: Any, docname: str, content: list[str]) -> None:
        content[0] = expand(content[0])

    def always_anew(app: Any, env: Any, *_: object) -> list[str]:
        """Return the pages with generated text, which Sphinx has to read again in every build."""
        return sorted(
            name for name in env.found_docs if "<!-- generated:" in Path(env.doc2path(name)).read_text()
        )

    app.connect("source-read", read)
    app.connect("env-get-outdated", always_anew)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
