"""Readers of pages: they run the commands of a page in order, and compare what is printed."""

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.doc.pages import Block, agrees, blocks
from tests.doc.world import HAS, DocumentMachine

SECONDS: Final = 60
"""Maximum seconds for a machine slower than the sleep of a page assumes."""

_SLEEP: Final = re.compile(r"^sleep \d+\n", re.MULTILINE)


def is_run(block: Block) -> bool:
    """Whether this machine runs the commands of the block."""
    return block.mark not in ("elsewhere", "needs") or (block.mark == "needs" and HAS[block.reason])


def read(page: Path, made: DocumentMachine) -> None:
    """Run the blocks of the page in order."""
    printed: str | None = ""
    questions = None
    for block in blocks(page):
        if block.language == "bash":
            printed = made.run(block) if is_run(block) else None
            questions = _questions_after_sleep(block)
        elif block.language == "output" and printed is not None:
            if questions is not None:
                printed = _ask_until(block.text, printed, questions, made)
            assert agrees(block.text, printed), f"{block}: not what was printed:\n{printed}"
        elif block.file is not None and is_run(block):
            made.write(block)


def _questions_after_sleep(block: Block) -> Block | None:
    """The commands after the last sleep of a block; None if the block does not sleep.

    Commands after a sleep only show a result, so that they may run again.
    """
    *before, questions = _SLEEP.split(block.text)
    return replace(block, text=questions) if before and questions else None


def _ask_until(wanted: str, printed: str, questions: Block, made: DocumentMachine) -> str:
    """Repeat the questions until they print the wanted text, or the time is over. Return the last text."""
    limit = time.monotonic() + SECONDS
    while not agrees(wanted, printed) and time.monotonic() < limit:
        time.sleep(1)
        printed = made.run(questions)
    return printed
