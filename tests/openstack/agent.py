"""The compute agent on a host of the cloud, beside `nova-compute`."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.compute_agent.agent.test_cache_control import host_tree
from tests.compute_agent.resctrl.fake import INTEL, FakeResctrl
from tests.openstack.config import CloudHost
from tests.openstack.ground import Ground, folder_of
from tests.openstack.identity import AGENT, credentials
from tests.openstack.process import CloudFailed, Program, run

CHECKOUT: Final = Path(__file__).parents[2]
_PROGRAM: Final = (sys.executable, "-m", "tests.openstack.agent_with_cache")
_IMPORTS: Final = {"PYTHONPATH": str(CHECKOUT)}
CHILDREN: Final = ("L3_0", "L3_1", "RESCTRL")
"""How the names of its providers end."""
_FOUND: Final = 3
"""How an audit ends that finds something."""
_CONFIG: Final = """\
[DEFAULT]
state_path = {folder}/state
[host]
root = {folder}/host
[placement]
{credentials}
[guests]
driver = libvirt
[libvirt]
uri = {uri}
[compute]
cpu_shared_set = {host.shared}
cpu_dedicated_set = {host.dedicated}
update_resources_interval = 1
[policy]
name = follow
"""


@dataclass(frozen=True)
class CloudAgent:
    """A running agent."""

    folder: Path

    def ask(self, *command: str, good: tuple[int, ...] = (0,)) -> Any:
        """What a command of it answers."""
        return json.loads(
            run([*_command(self.folder), *command, "-f", "json"], self.folder, _IMPORTS, good=good)
        )

    def has_reported(self) -> bool:
        """Whether Placement knows all that it has to say."""
        try:
            status = self.ask("status")
        except CloudFailed:  # it does not listen yet
            return False
        return status["last_report_seconds_ago"] is not None and not status["refused"]

    def audit(self) -> list[Any]:
        """What does not match."""
        found: list[Any] = self.ask("audit", good=(0, _FOUND))
        return found


@contextmanager
def agent(ground: Ground, host: CloudHost) -> Iterator[CloudAgent]:
    """An agent that has reported, and has found out by itself whose the root provider is.

    It takes the machine for one of two CPUs, with a cache of each and control of them.
    """
    with folder_of(ground, "agent") as folder:
        text = _CONFIG.format(
            folder=folder, credentials=credentials(ground.keystone, AGENT), uri=ground.libvirtd.uri, host=host
        )
        (folder / "compute-agent.conf").write_text(text)
        host_tree(folder / "host")
        FakeResctrl.of(INTEL, folder / "host" / "sys/fs/resctrl")
        made = CloudAgent(folder)
        with Program("compute-agent", [*_command(folder), "run"], folder, made.has_reported, _IMPORTS):
            yield made


def _command(folder: Path) -> list[str | Path]:
    return [*_PROGRAM, "--config-file", folder / "compute-agent.conf"]
