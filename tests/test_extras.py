"""All programs work in environments like those of users: without extras, and with each one."""

import configparser
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from tests.doc.pages import SITE
from tests.doc.reader import read
from tests.doc.world import DocumentWorldMissing, Installed, machine
from tests.environments import NAME, ROOT, build_wheel, extras, install, link, needed, run

pytestmark = [pytest.mark.slow]

OF_DEVELOPERS = {"test", "mutants", "release", "doc", "dist", "lint"}
EXTRAS = tuple(extras())
PROGRAMS = ("compute-agent", "placement-api", "placement-manage", "placement-shadow", "placement-status")

ALL_HELP = """
import argparse, contextlib, io, sys

def subcommands(parser):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield [name]
                for rest in subcommands(below):
                    yield [name, *rest]

from compute_agent.cmd import main as agent
from placement.cmd import api, manage, status
from placement_extras.shadow import command as shadow
asked = [(each.main, []) for each in (agent, api, manage, shadow, status)]
asked += [(agent.main, name.split()) for name, _ in agent.AgentCommandManager()]
asked += [(manage.main, words) for words in subcommands(manage.build_parser())]
asked += [(status.main, ["upgrade", "check"])]
for program, words in asked:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            status = program([*words, "--help"])
        except SystemExit as ended:
            status = ended.code
    told = printed.getvalue()
    assert status in (0, None) and "usage:" in told.lower(), (program, words, status, told)
    print(*words)
"""

PLUGIN_HELP = """
from importlib.metadata import distribution
for each in distribution("placement-compute").entry_points.select(group="openstack.placement.v1"):
    command = each.load()(None, None)
    assert command.get_parser(each.name).format_help()
    print(each.name)
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment into which pip installed the wheel with no extra."""
    folder = tmp_path_factory.mktemp("bare")
    environment = folder / "environment"
    run(sys.executable, "-m", "venv", environment, cwd=folder)
    install(str(build_wheel(folder)), environment)
    return environment


def libraries_of(extra: str, folder: Path) -> str:
    """A folder with the distributions that an extra adds."""
    always = needed(NAME)
    brought = {name: each for name, each in needed(f"{NAME}[{extra}]").items() if name not in always}
    assert brought, extra
    return str(link(list(brought.values()), folder))


def test_the_page_of_the_installation_names_every_extra_for_users() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert {*EXTRAS} == {*setup["options.extras_require"]} - OF_DEVELOPERS


# an extra changes no help: each one walks the same commands again
@pytest.mark.parametrize("extra", ["", *(pytest.param(each, marks=pytest.mark.long) for each in EXTRAS)])
def test_every_program_and_subcommand_has_help(bare: Path, extra: str, tmp_path: Path) -> None:
    variables = {}
    if extra:
        try:
            variables["PYTHONPATH"] = libraries_of(extra, tmp_path / "extra")
        except PackageNotFoundError as error:
            pytest.skip(f"what the extra {extra} brings is not installed beside the tests: {error}")
    told = run(bare / "bin" / "python", "-c", ALL_HELP, cwd=tmp_path, **variables).splitlines()
    assert {"fleet sign", "guest run", "db sync", "upgrade check"} <= {*told}


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_starts_without_extras(bare: Path, program: str, tmp_path: Path) -> None:
    assert "usage:" in run(bare / "bin" / program, "--help", cwd=tmp_path).lower()


@pytest.mark.parametrize(
    "words", [("help",), ("complete",), ("help", "guest"), ("config", "check", "--help")]
)
def test_without_extras_commands_are_listed(bare: Path, words: tuple[str, ...], tmp_path: Path) -> None:
    printed = run(bare / "bin" / "compute-agent", *words, cwd=tmp_path)
    assert words[-1] == "--help" or "guest" in printed


@pytest.mark.parametrize(
    "words", [("key", "k"), ("show", "f"), ("sign", "s", "--key=k", "--group=g", "--to=.")]
)
def test_a_command_that_needs_an_extra_names_it(bare: Path, words: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as failed:
        run(bare / "bin" / "compute-agent", "fleet", *words, cwd=tmp_path)
    told = str(failed.value)
    assert f"compute-agent fleet {words[0]} needs the Python package cryptography" in told
    assert "with its extra fleet" in told
    assert not [*tmp_path.iterdir()]


def test_the_demo_needs_no_extra(bare: Path) -> None:
    run(bare / "bin" / "python", "-m", "tests.demo", cwd=ROOT)


def test_the_tutorial_needs_no_extra(bare: Path, tmp_path: Path) -> None:
    """Its reader installs OpenStack's command line, which has the other requirements."""
    always = needed(NAME)
    client = {**needed("python-openstackclient"), **needed("osc-placement")}
    brought = link([each for name, each in client.items() if name not in always], tmp_path / "client")
    (libraries,) = (bare / "lib").glob("python*/site-packages")
    path = f"{libraries}:{brought}"
    run(bare / "bin" / "python", "-c", PLUGIN_HELP, cwd=tmp_path, PYTHONPATH=str(brought))
    program = bare / "bin" / "openstack"
    program.write_text(
        f"#!{bare}/bin/python\nimport sys\nfrom openstackclient.shell import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    try:
        with machine("", Installed(bare / "bin", path)) as made:
            read(SITE / "tutorial" / "index.md", made)
    except DocumentWorldMissing as missing:
        pytest.skip(str(missing))
