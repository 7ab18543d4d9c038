"""Installation commands name a path to a wheel, because the project's name on the index is not reserved."""

import re
import subprocess

from tests.doc.pages import ROOT

_NAME = r"(?<![\w/.-])placement[-_.]compute"
BY_NAME = re.compile(
    rf"pip3?\s+install\b[^`;&|\n]{{0,120}}?{_NAME}(?![\w/-]|\.\w)|\binstall\s+['\"]?{_NAME}\[", re.IGNORECASE
)


def test_the_pattern_finds_names_of_packages() -> None:
    for line in (
        "`pip install placement-compute`",
        "pip install 'placement-compute[fleet]'",
        "/opt/x/bin/pip install -U placement_compute==1.0",
        "pip install osc-placement placement-compute.",
        "install placement-compute[postgresql], which brings psycopg",
    ):
        assert BY_NAME.search(line), line
    for line in (
        "pip install '/tmp/placement_compute-1.0.0-py3-none-any.whl[libvirt]'",
        "/opt/placement-compute/bin/pip install ./placement_compute-1.0.0-py3-none-any.whl",
        "/opt/placement-compute/bin/pip install setuptools",
    ):
        assert not BY_NAME.search(line), line


def test_no_page_message_or_help_text_names_a_package_of_the_index() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    found = []
    for name in listed.stdout.split("\0"):
        path = ROOT / name
        if not path.is_file() or path.is_symlink() or name == "tests/doc/test_installing.py":
            continue
        text = path.read_bytes().decode(errors="replace")
        if "pip" in text:
            # text may be broken over lines: in sources into pieces, in samples by comment signs
            joined = re.sub(r"""["']?\s*\n[#\s]*["']?""", " ", text)
            found += [f"{name}: {each.group()}" for each in BY_NAME.finditer(joined)]
    assert found == []
