"""The pages for man(1): each program has a complete page, and formatters accept the page."""

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doc.extensions import commands
from tests.doc.pages import ROOT


def scripts() -> list[str]:
    """Programs of an installation, from the files that it is built from."""
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg")
    entries = setup["options.entry_points"]["console_scripts"].split("\n")
    files = setup["options"]["scripts"].split()
    return sorted([line.partition(" =")[0] for line in entries if line] + [Path(each).name for each in files])


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the pages; return their folder."""
    folder = tmp_path_factory.mktemp("man")
    subprocess.run(
        [sys.executable, ROOT / "doc/_ext/man.py", folder],
        env=os.environ | {"SOURCE_DATE_EPOCH": "1767225600"},
        timeout=600,
        check=True,
    )
    return folder


def test_every_program_has_a_page(pages: Path) -> None:
    assert sorted(path.name for path in pages.iterdir()) == [f"{name}.8" for name in scripts()]


def test_a_page_has_the_given_date(pages: Path) -> None:
    assert ' 8 2026-01-01 "placement-compute ' in (pages / "compute-agent.8").read_text()


@pytest.mark.parametrize("program", scripts())
def test_a_page_has_every_command_and_option(program: str, pages: Path) -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    done = subprocess.run(
        ["groff", "-man", "-Tascii", "-K", "utf8", "-P-c", "-rLL=200n", "-rHY=0", pages / f"{program}.8"],
        capture_output=True,
        text=True,
        check=True,
    )
    text = re.sub(r".\x08", "", done.stdout)
    for words, parser in commands.parsers(program).items():
        if commands.only_leads_on(words, parser):
            continue
        assert f"{program} {words}".strip() in text
        for action in commands.own_options(parser):
            for name in commands.names_of(action):
                assert re.search(rf"^ +(.*, )?{re.escape(name)}(, .*)?( +\S.*)?$", text, re.MULTILINE), name


@pytest.mark.parametrize(
    "formatter",
    [("mandoc", "-Tlint", "-Wwarning"), ("groff", "-man", "-ww", "-z", "-K", "utf8")],
    ids=lambda words: words[0],
)
def test_formatters_print_no_warning(formatter: tuple[str, ...], pages: Path) -> None:
    if shutil.which(formatter[0]) is None:
        pytest.skip(f"{formatter[0]} is not installed")
    for page in pages.iterdir():
        done = subprocess.run([*formatter, page], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), page.name
