"""The modules of the site's extensions, for tests; only Sphinx has their folder in its path."""

import sys

from tests.doc.pages import SITE

sys.path.append(str(SITE / "_ext"))

import commands
import floors
import generated
import options
import sources
import threads
from commands import PLUGIN, PROGRAMS
from truth import UNKNOWN, command_target, option_target

__all__ = [
    "PLUGIN",
    "PROGRAMS",
    "UNKNOWN",
    "command_target",
    "commands",
    "floors",
    "generated",
    "option_target",
    "options",
    "sources",
    "threads",
]
