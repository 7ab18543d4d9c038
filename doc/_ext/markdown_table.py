"""Parts of markdown tables."""


def cell(text: str) -> str:
    """A text as a cell of a table: on one line, without the mark between cells."""
    return " ".join(text.split()).replace("|", "\\|")
