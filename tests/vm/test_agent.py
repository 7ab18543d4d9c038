"""The whole agent on real kernels, end to end against a placement service outside of the machine."""

import contextlib
import json
import urllib.parse
import xml.etree.ElementTree as ElementTree

import pytest

from tests.compute_agent import servers
from tests.vm import machine

pytestmark = pytest.mark.slow

SMP = ("--smp", "sockets=2,cores=2,threads=2")


@pytest.mark.parametrize("cpu", ["intel", "amd"])
def test_an_agent_in_the_machine_with_a_service_outside(cpu, tmp_path, record_property):
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
            machine.pytest_command("tests/vm/inside_machine.py", "result.xml"),
            share,
            *SMP,
            *("--cpu", cpu, "--net", "--cache", "loose"),
            *("--env", f"PLACEMENT=http://{machine.HOST}:{port}"),
        )
    print(result.output)
    assert result.status == 0, result.output
    suite = ElementTree.parse(share / "result.xml").getroot().find("testsuite")
    totals = {key: int(suite.get(key)) for key in ("tests", "failures", "errors", "skipped")}
    record_property("totals", totals)
    record_property("megabytes_a_second", json.loads((share / "rates.json").read_text()))
    assert totals["failures"] == totals["errors"] == totals["skipped"] == 0
    assert totals["tests"] >= 9
