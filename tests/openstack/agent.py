"""The compute agent on a host of the cloud, beside `nova-compute`."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.keystone import Caller
from tests.openstack.config import Host
from tests.openstack.ground import Ground
from tests.openstack.identity import credentials
from tests.openstack.process import CloudFailed, Program, run

AGENT: Final = Caller("compute-agent", "service", "service")
_PROGRAM: Final = Path(sys.executable).with_name("compute-agent")
_FOUND: Final = 3
"""How an audit ends that finds something."""
_CONFIG: Final = """\
[DEFAULT]
state_path = {folder}/state
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
class Agent:
    """A running agent."""

    folder: Path

    def ask(self, *command: str, good: tuple[int, ...] = (0,)) -> Any:
        """What a command of it answers."""
        return json.loads(run([*_command(self.folder), *command, "-f", "json"], self.folder, good=good))

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
def agent(ground: Ground, host: Host) -> Iterator[Agent]:
    """An agent that has reported, and has found out by itself whose the root provider is."""
    folder = ground.folder / "agent"
    folder.mkdir()
    ground.keystone.identity.user(AGENT)
    text = _CONFIG.format(
        folder=folder, credentials=credentials(ground.keystone, AGENT), uri=ground.libvirtd.uri, host=host
    )
    (folder / "compute-agent.conf").write_text(text)
    made = Agent(folder)
    with Program("compute-agent", [*_command(folder), "run"], folder, made.has_reported):
        yield made


def _command(folder: Path) -> list[str | Path]:
    return [_PROGRAM, "--config-file", folder / "compute-agent.conf"]
