"""The reference of all commands, made from the argument parsers of the programs."""

import argparse
import re
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Final

from oslo_config import cfg

from compute_agent.cmd.main import WORDS, AgentShell, commands_of
from placement.cmd import api, manage
from placement_extras.shadow import command as shadow

PROGRAMS: Final = (
    "compute-agent",
    "placement-manage",
    "placement-api",
    "placement-shadow",
    "placement-status",
)
PLUGIN: Final = "openstack"
"""A program of another project; the reference has only the commands that this project adds to it."""


@cache
def parsers(program: str) -> Mapping[str, argparse.ArgumentParser]:
    """Return the parser of each command of a program, by the words of the command.

    The parser of the program itself has the empty text as key.
    """
    return dict(_parsers(program))


def _parsers(program: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    match program:
        case "compute-agent":
            shell = AgentShell()
            yield "", shell.parser
            for name in sorted(name for word in WORDS for name in commands_of(word)):
                command, *_ = shell.command_manager.find_command(name.split())
                yield name, command(shell, None, cmd_name=name).get_parser(f"{program} {name}")
        case "placement-manage":
            yield from _tree("", manage.build_parser())
        case "placement-api":
            yield "", _oslo_parser(program, api.CLI_OPTIONS)
        case "placement-shadow":
            yield "", _oslo_parser(program, shadow.CLI_OPTIONS)
        case "placement-status":
            top = _oslo_parser(program, ())
            yield "", top
            checks = argparse.ArgumentParser(
                f"{program} upgrade check",
                description="Say whether this version of the service can be started.",
            )
            checks.add_argument("--json", action="store_true", help="the results as JSON")
            yield "upgrade check", checks
        case "openstack":
            for entry in sorted(entry_points(group="openstack.placement.v1"), key=lambda entry: entry.name):
                if entry.module.startswith("placement_extras.openstack."):
                    name = entry.name.replace("_", " ")
                    yield name, entry.load()(None, None).get_parser(f"{program} {name}")


def _tree(words: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield words, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from _tree(f"{words} {name}".strip(), below)


def _oslo_parser(program: str, options: Any) -> argparse.ArgumentParser:
    """Return the parser of the options that are only for the command line, not for the ini file."""
    conf = cfg.ConfigOpts()
    conf.register_cli_opts(options)
    conf([], prog=program, default_config_files=[], default_config_dirs=[])
    parser: argparse.ArgumentParser = conf._oparser
    return parser


def page(program: str) -> str:
    """Return the reference of a program's commands, as markdown."""
    return "\n".join(
        line for name, parser in parsers(program).items() for line in _command(program, name, parser)
    )


def anchor(program: str, words: str) -> str:
    """Return the anchor of a command in the reference."""
    return re.sub(r"[^a-z0-9]+", "-", f"command {program} {words}".strip().lower())


def _command(program: str, words: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    if only_leads_on(words, parser):
        return
    yield f"\n({anchor(program, words)})="
    yield f"## {program} {words}".rstrip() + "\n"
    if parser.description and words:
        yield _paragraphs(parser.description) + "\n"
    yield f"```text\n{usage(program, words, parser)}\n```\n"
    if own := own_options(parser):
        yield "| | |\n| --- | --- |"
        for action in own:
            yield f"| {_names(action)} | {_cell(help_of(action))} |"
        yield ""


def only_leads_on(words: str, parser: argparse.ArgumentParser) -> bool:
    """Whether these words are not a command themselves, but only the beginning of commands."""
    return bool(words) and any(isinstance(each, argparse._SubParsersAction) for each in parser._actions)


def own_options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the options and arguments of a command, without those that all commands have."""
    return [action for action in parser._actions if _is_worth_telling(action)]


def usage(program: str, words: str, parser: argparse.ArgumentParser) -> str:
    """Return the usage of a command, in lines of at most 96 characters."""
    formatter = argparse.HelpFormatter(f"{program} {words}".strip(), width=96)
    formatter.add_usage(None, own_options(parser), [], prefix="")
    return formatter.format_help().strip()


_COMMON: Final = frozenset(
    {
        *("columns", "deferred_help", "empty", "fit_width", "formatter", "help", "max_width", "noindent"),
        *("prefix", "print_empty", "quote_mode", "sort_columns", "sort_direction", "variables"),
    }
)
"""Options that all commands have: the format of the output, and the columns in it."""


def _is_worth_telling(action: argparse.Action) -> bool:
    """Whether the reference shows an option or argument: it is not hidden, and not common to all commands."""
    return (
        action.help is not argparse.SUPPRESS
        and action.dest not in _COMMON
        and not isinstance(action, argparse._SubParsersAction)
    )


def _names(action: argparse.Action) -> str:
    return ", ".join(f"`{name}`" for name in names_of(action))


def names_of(action: argparse.Action) -> list[str]:
    """Return an option or argument as users write it, once for each of its names."""
    value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
    # argparse also shows the name of the value, if it has one, instead of a long list of choices; then the
    # help text lists the choices
    if action.choices and not action.metavar:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    return [f"{name} {value}".strip() for name in action.option_strings or [""]]


def help_of(action: argparse.Action) -> str:
    """Return the help text of an option."""
    text = action.help or ""
    return (
        text % {"default": action.default, "prog": "", "type": ""}
        if "%(" in text
        else text.replace("%%", "%")
    )


def _paragraphs(text: str) -> str:
    """Return a help text as markdown; indented paragraphs are examples and become blocks of code."""
    return "\n\n".join(
        f"```text\n{textwrap.dedent(each)}\n```"
        if each.startswith("  ")
        else _escape(re.sub(r"``?(.+?)``?", r"\1", each))
        for each in text.split("\n\n")
    )


def _cell(text: str) -> str:
    return _escape(re.sub(r"\s+", " ", text))


def _escape(text: str) -> str:
    return re.sub(r"([\\`*_<>\[\]#|$~{}])", r"\\\1", text)
