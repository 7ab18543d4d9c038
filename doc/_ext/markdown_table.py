"""Makes cells of markdown tables."""


def cell(text: str) -> str:
    """Return a text as a cell of a table: on one line, with each ``|`` escaped."""
    return " ".join(text.split()).replace("|", "\\|")
