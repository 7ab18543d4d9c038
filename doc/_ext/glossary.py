"""A table of the terms in `glossary.yaml`, and lists of the names of one word that are allowed."""

from pathlib import Path
from typing import Any, Final

import yaml
from markdown_table import cell

_HEAD: Final = "| our word | what it means | the field's word | used in |\n| --- | --- | --- | --- |\n"


def page(source: Path) -> str:
    """Return the table of the terms, and the lists of nouns and verbs that may be names of one word."""
    glossary = yaml.safe_load(source.read_text(encoding="utf-8"))
    terms = sorted(glossary["terms"], key=lambda term: term["term"].lower())
    return (
        _HEAD
        + "".join(map(_row, terms))
        + "\n## Names of one word\n\nA class has one of these names or a name of two words: "
        + _listed(glossary["nouns"])
        + ".\n\nA function or method has a name of two words, or one of these where its class or module "
        + "makes the object plain: "
        + _listed(glossary["words"])
        + ".\n"
    )


def _row(term: dict[str, Any]) -> str:
    cells = (term["term"], term["means"], term["field"], term["used in"])
    return "| " + " | ".join(map(cell, cells)) + " |\n"


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
