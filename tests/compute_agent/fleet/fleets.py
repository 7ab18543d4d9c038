"""Fleets for tests: a key, a folder as the source of settings, and a host that follows it."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from compute_agent.fleet import revision, signature
from compute_agent.fleet.configuration import FleetSettings, follow_source, with_kept
from compute_agent.fleet.revision import FleetRevision
from tests.compute_agent.builders import load_options

KEY = signature.new_key()
PUBLIC = signature.public_key(KEY)
SETTINGS = "[DEFAULT]\ncpu_allocation_ratio = 4\n"


def signed(
    generation: int,
    settings: str = SETTINGS,
    group: str = "edge",
    key: bytes = KEY,
    expires: datetime | None = None,
) -> bytes:
    return signature.sign_revision(revision.write(settings.encode(), group, generation, expires), key)


@dataclass
class FleetHost:
    """A host with its own configuration file and a source of settings, both below ``folder``."""

    folder: Path
    own: str = ""

    def __post_init__(self) -> None:
        for each in (self.source, self.state):
            each.mkdir(mode=0o750)
        self.write()

    @property
    def source(self) -> Path:
        return self.folder / "source"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def ini(self) -> Path:
        return self.folder / "host.conf"

    def write(self, own: str = "", public_key: str = PUBLIC, group: str = "edge") -> None:
        self.ini.write_text(
            f"[DEFAULT]\nstate_path = {self.state}\n{own}\n"
            f"[fleet]\ngroup = {group}\nsource = {self.source}\npublic_keys = {public_key}\n"
        )

    def offer(self, content: bytes, group: str = "edge") -> None:
        (self.source / f"{group}.conf").write_bytes(content)

    def own_conf(self):
        return load_options(self.ini)

    def conf(self):
        return with_kept(self.own_conf())

    def follow(self, check=lambda options: None) -> FleetRevision | None:
        conf = self.own_conf()
        fleet = FleetSettings.from_options(conf)
        assert fleet is not None
        return follow_source(fleet, conf, check)

    @property
    def ratio(self) -> float | None:
        return self.conf().cpu_allocation_ratio
