"""The notes of changes that are not released yet, put together by towncrier."""

import subprocess
import sys
from pathlib import Path


def page(root: Path) -> str:
    """Return the notes in `doc/changes`, grouped by kind, as markdown."""
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "next"]
    drafted = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return drafted.partition("\n### ")[1].lstrip() + drafted.partition("\n### ")[2] or "Nothing.\n"
