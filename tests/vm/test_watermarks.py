"""Watermarks on a real kernel with cgroup v2, in a machine whose CPUs nobody else uses."""

import contextlib
import json
import urllib.parse
import xml.etree.ElementTree as ElementTree

import pytest

from tests.compute_agent import servers
from tests.vm import machine

pytestmark = pytest.mark.slow

SMP = ("--smp", "sockets=1,cores=2,threads=1")


def test_the_machine_comes_below_its_line_and_everything_is_given_back(tmp_path, record_property):
    share, service = tmp_path / "share", tmp_path / "service"
    try:
        machine.find()
    except machine.MachineMissing as missing:
        pytest.skip(str(missing))
    share.mkdir()
    service.mkdir()
    machine.stage(share, (*machine.PYTEST, *machine.AGENT))
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(servers.running("ours", service))
        port = urllib.parse.urlsplit(url).port
        result = machine.run(
            machine.pytest_command("tests/vm/inside_watermarks.py", "result.xml"),
            share,
            *SMP,
            *("--no-rdt", "--net", "--cache", "loose"),
            *("--env", f"PLACEMENT=http://{machine.HOST}:{port}"),
            timeout=1800,
        )
    print(result.output)
    assert result.status == 0, result.output
    suite = ElementTree.parse(share / "result.xml").getroot().find("testsuite")
    totals = {key: int(suite.get(key)) for key in ("tests", "failures", "errors", "skipped")}
    found = json.loads((share / "watermarks.json").read_text())
    print(found)
    record_property("found", found)
    assert totals == {"tests": 4, "failures": 0, "errors": 0, "skipped": 0}
