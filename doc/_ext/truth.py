"""A Sphinx extension that makes links of the names of options and commands, and checks that they exist.

It looks up each literal of the form `[section] option`, and each literal that begins with the name of a
program, such as `compute-agent guest run`. An option or command that does not exist causes a warning, and
warnings make the build fail.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import commands
import options
from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

LOG = logging.getLogger(__name__)

_OPTION: Final = re.compile(r"^\[([A-Za-z_]+)(:[^\]]+)?\] ([a-z_0-9]+)( = .*)?$")

# These sections also have options of the auth plugin that the section selects. The options are known only
# when the plugin is loaded.
_PLUGINS: Final = frozenset({"keystone_authtoken"})


class References(SphinxTransform):
    """Makes the names of options and commands links to the reference."""

    default_priority = 200

    def apply(self, **_: Any) -> None:
        """Replace the names on one page; Sphinx calls this method for each page."""
        for node in list(self.document.findall(nodes.literal)):
            if isinstance(node.parent, nodes.reference | addnodes.pending_xref):
                continue
            text = node.astext()
            target = option_target(text) or command_target(text)
            if target == UNKNOWN:
                LOG.warning("there is no %s", text, location=node)
            elif target and self.env.docname != target[0]:
                # The type `keyword` keeps the literal as the text of the link; `ref` would show plain text.
                link = addnodes.pending_xref(
                    "",
                    refdomain="std",
                    reftype="keyword",
                    reftarget=target[1],
                    refexplicit=True,
                    refwarn=True,
                )
                link["refdoc"] = self.env.docname
                node.replace_self(link)
                link += node


UNKNOWN: Final = ("", "")


def option_target(text: str) -> tuple[str, str] | None:
    """Return the page and the anchor of the option that a text names.

    The result is UNKNOWN if the option does not exist, and None if the text does not name an option.
    """
    named = _OPTION.match(text)
    if named is None:
        return None
    section = named[1] + (":NAME" if named[2] else "")
    for program in options.PROGRAMS:
        if named[3] in options.sections(program).get(section, ()):
            return f"reference/{program}-options", options.anchor(program, section, named[3])
    return None if section in _PLUGINS else UNKNOWN


def command_target(text: str) -> tuple[str, str] | None:
    """Return the page and the anchor of the command that a text begins with.

    The result is UNKNOWN if the command, or an option after it, does not exist. The result is None if the
    text is not a command line.
    """
    program, *words = text.split() or [""]
    if program not in (*commands.PROGRAMS, commands.PLUGIN) or not words:
        return None
    if words[0] == "--config-file":
        del words[:2]
    known = commands.parsers(program)
    for length in range(len(words), -1, -1):
        name = " ".join(words[:length])
        if name in known:
            if not name and words and not words[0].startswith("-"):
                return UNKNOWN
            given = {
                word.partition("=")[0] for word in _before_dashes(words[length:]) if word.startswith("--")
            }
            if given <= set(known[name]._option_string_actions):
                return f"reference/{program}", commands.anchor(program, name)
            return UNKNOWN
    return None if program == commands.PLUGIN else UNKNOWN


def _before_dashes(words: list[str]) -> Iterator[str]:
    for word in words:
        if word == "--":
            return
        yield word.strip("[]|")


def setup(app: Any) -> dict[str, bool]:
    """Register the extension; Sphinx calls this function."""
    app.add_transform(References)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
