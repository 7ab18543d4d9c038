"""The pages of tutorial, installation and how-to are correct: tests run and load their blocks."""

import configparser
import re
from pathlib import Path

import pytest
from keystoneauth1 import loading

from compute_agent import conf as agent_conf
from compute_agent.throttling.settings import read_settings
from compute_agent.throttling.watermarks.metrics import load_registry
from placement import conf as service_conf
from placement.db import engine
from tests.doc.extensions import PLUGIN, PROGRAMS, UNKNOWN, command_target, options
from tests.doc.pages import SITE, Block, agrees, blocks, commands, pages
from tests.doc.reader import read
from tests.doc.world import DocumentWorldMissing, machine
from tests.doc.worlds import SETUPS

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


RUN = ("tutorial", "install", "howto")
"""Folders with pages that tests run; blocks of other pages are only loaded and parsed."""

ALSO_RUN = ("host/cpu-sets",)
"""Pages of other folders that tests run."""

RUN_PAGES = [*pages(*RUN), *(SITE / f"{name}.md" for name in ALSO_RUN)]


def name_of(page: Path) -> str:
    return str(page.relative_to(SITE).with_suffix(""))


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize(
    "page", [page for page in RUN_PAGES if any(b.language == "bash" for b in blocks(page))], ids=name_of
)
def test_the_blocks_of_a_page_work(page: Path) -> None:
    try:
        with machine(SETUPS.get(name_of(page), "")) as made:
            read(page, made)
    except DocumentWorldMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize(
    "block", [b for page in pages() for b in blocks(page) if b.language == "ini"], ids=str
)
def test_an_ini_block_is_loaded_without_an_unknown_option(block: Block, tmp_path: Path) -> None:
    load(block, tmp_path)


@pytest.mark.parametrize("page", RUN_PAGES, ids=name_of)
def test_every_block_of_shell_and_ini_is_marked_as_such(page: Path) -> None:
    languages = {block.language for block in blocks(page)}
    assert languages <= {"bash", "ini", "output", "text", "xml", "json", "yaml", "nginx", "haproxy", "sql"}
    for block in blocks(page):
        if block.mark == "elsewhere":
            assert block.reason, f"{block} does not say why it is not run"
        assert block.mark in ("", "fails", "needs", "elsewhere"), block


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_the_commands_of_a_page_and_their_options_exist(page: Path) -> None:
    for block in blocks(page):
        for line in commands(block.text) if block.language == "bash" else ():
            said = re.sub(r"\bfor \w+ in [^;]*;", "", line)
            for command in re.findall(rf"\b(?:{'|'.join([*PROGRAMS, PLUGIN])}) [^|;&()<>]*", said):
                assert command_target(command) != UNKNOWN, f"{block}: {command}"


def test_output_agrees_with_ellipses_and_lines_between() -> None:
    printed = "one 1\ntwo   22 words\nthree\n"
    assert agrees("one ...\nthree", printed)
    assert agrees("two 22", printed)
    assert not agrees("three\none", printed)
    assert not agrees("two 23", printed)


def test_commands_are_one_line_each() -> None:
    assert list(commands("a \\\n  b\n# c\n\nd\n")) == ["a    b", "d"]


def test_the_page_about_pgbouncer_sets_all_options_that_pgbouncer_ignores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: set[str] = set()

    def connect(answer_timeout: float, *, options: str, **others: object) -> None:
        sent.update(re.findall(r"-c (\w+)=", options))
        raise ConnectionRefusedError

    monkeypatch.setattr(engine, "find_connector", lambda _: connect)
    made = engine.create_engine("postgresql+psycopg://server/placement", "AUTOCOMMIT", engine.PoolOptions())
    with pytest.raises(ConnectionRefusedError):
        made.connect()
    page = (SITE / "howto/postgresql-failover.md").read_text(encoding="utf-8")
    assert sent == set(re.findall(r"ALTER ROLE placement SET (\w+) =", page))
