"""The compute agent on a host of the cloud, beside `nova-compute`."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.compute_agent.agent.cache_agent import host_tree
from tests.compute_agent.resctrl.fake import INTEL, FakeResctrl
from tests.openstack.config import CloudHost
from tests.openstack.ground import Ground, folder_of
from tests.openstack.identity import AGENT, credentials
from tests.openstack.process import CloudFailed, Program, run

CHECKOUT: Final = Path(__file__).parents[2]
_PROGRAM: Final = (sys.executable, "-m", "tests.openstack.agent_with_cache")
_IMPORTS: Final = {"PYTHONPATH": str(CHECKOUT)}
CHILDREN: Final = ("L3_0", "L3_1", "RESCTRL")
"""Suffixes of the names of its providers."""
_FOUND: Final = 3
"""Exit status of an audit with findings."""
_CONFIG: Final = """\
[DEFAULT]
state_path = {folder}/state
[host]
root = {folder}/host
[placement]
{credentials}
[guests]
drivers = libvirt
[libvirt]
uri = {uri}
[compute]
cpu_shared_set = {host.shared}
cpu_dedicated_set = {host.dedicated}
update_resources_interval = 1
[policy]
name = follow
"""


@dataclass
class CloudAgent:
    """A running agent."""

    folder: Path
    program: Program | None = None

    def ask(self, *command: str, good: tuple[int, ...] = (0,)) -> Any:
        """Run a command of the agent and return its answer."""
        return json.loads(
            run([*_command(self.folder), *command, "-f", "json"], self.folder, _IMPORTS, good=good)
        )

    def restart_with(self, section: str) -> None:
        """Start the agent again with one more section of its configuration."""
        assert self.program is not None
        self.program.stop()
        with (self.folder / "compute-agent.conf").open("a") as file:
            file.write(section)
        self.program.start()

    def has_reported(self) -> bool:
        """Whether the agent's reports are complete."""
        try:
            status = self.ask("status")
        except CloudFailed:  # it does not listen yet
            return False
        return status["last_report_seconds_ago"] is not None and not status["refused"]

    def audit(self) -> list[Any]:
        """Return the findings of an audit."""
        found: list[Any] = self.ask("audit", good=(0, _FOUND))
        return found


@contextmanager
def agent(ground: Ground, host: CloudHost) -> Iterator[CloudAgent]:
    """An agent that has reported, and has detected the owner of the root provider.

    Its view of the machine has two CPUs, each with a controllable cache.
    """
    with folder_of(ground, "agent") as folder:
        text = _CONFIG.format(
            folder=folder, credentials=credentials(ground.keystone, AGENT), uri=ground.libvirtd.uri, host=host
        )
        (folder / "compute-agent.conf").write_text(text)
        host_tree(folder / "host")
        FakeResctrl.of(INTEL, folder / "host" / "sys/fs/resctrl")
        made = CloudAgent(folder)
        made.program = Program(
            "compute-agent", [*_command(folder), "run"], folder, made.has_reported, _IMPORTS
        )
        with made.program:
            yield made


def _command(folder: Path) -> list[str | Path]:
    return [*_PROGRAM, "--config-file", folder / "compute-agent.conf"]
