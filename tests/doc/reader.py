"""Readers of pages: they run the commands of a page in order, and compare what is printed."""

from pathlib import Path

from tests.doc.pages import Block, agrees, blocks
from tests.doc.world import HAS, DocumentMachine


def is_run(block: Block) -> bool:
    """Whether this machine runs the commands of the block."""
    return block.mark not in ("elsewhere", "needs") or (block.mark == "needs" and HAS[block.reason])


def read(page: Path, made: DocumentMachine) -> None:
    """Run the blocks of the page in order."""
    printed: str | None = ""
    for block in blocks(page):
        if block.language == "bash":
            printed = made.run(block) if is_run(block) else None
        elif block.language == "output" and printed is not None:
            assert agrees(block.text, printed), f"{block}: not what was printed:\n{printed}"
        elif block.file is not None and is_run(block):
            made.write(block)
