"""Ini blocks, loaded with the loaders of the programs."""

import configparser
from pathlib import Path

from keystoneauth1 import loading

from compute_agent import conf as agent_conf
from compute_agent.throttling.settings import read_settings
from compute_agent.throttling.watermarks.metrics import load_registry
from placement import conf as service_conf
from tests.doc.extensions import options
from tests.doc.pages import Block

_SERVICE = {
    "api",
    "placement_database",
    "reservations",
    "keystone_authtoken",
    "oslo_policy",
    "oslo_middleware",
    "cors",
    "healthcheck",
}


def program_of(block: Block) -> str | None:
    """Return the program that reads the block, by its file or sections; None for a foreign program."""
    name = Path(block.file).name if block.file else ""
    if {"Unit", "Service", "Install"} & set(_parse(block).sections()):
        return None  # a systemd unit
    if name == "placement.conf" or _SERVICE & set(_parse(block).sections()):
        return "placement"
    return "compute-agent"


def load(block: Block, folder: Path) -> None:
    """Load a block with the program's own loader.

    :raises AssertionError: the program does not know an option or a value
    """
    program = program_of(block)
    if program is None:
        return
    file = folder / "block.conf"
    file.write_text(block.text)
    if program == "placement":
        service_conf.new_config(config_files=[str(file)])
    else:
        read_settings(agent_conf.load([], [str(file)]), load_registry())
    unknown = list(_unknown(program, _parse(block)))
    assert not unknown, f"{block}: {program} has no {', '.join(unknown)}"


def _parse(block: Block) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(default_section="", strict=False, inline_comment_prefixes=None)
    parser.read_string(block.text)
    return parser


def _unknown(program: str, parser: configparser.RawConfigParser):
    known = options.sections(program)
    for section in parser.sections():
        listed = known.get(section) or known.get(f"{section.partition(':')[0]}:NAME", {})
        names = set(listed) | {old.name for option in listed.values() for old in option.deprecated_opts}
        if plugin := parser.get(section, "auth_type", fallback=None):
            names |= {option.dest for option in loading.get_plugin_loader(plugin).get_options()}
        yield from (
            f"[{section}] {name}" for name in parser.options(section) if name.replace("-", "_") not in names
        )
