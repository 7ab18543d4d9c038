"""The configuration of a host: what it has from its fleet, and its own files above that."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from oslo_config import cfg

from compute_agent import conf as agent_conf
from compute_agent.conf import written
from compute_agent.conf.fleet import GUEST
from compute_agent.fleet import guests, kept, rules, source
from compute_agent.fleet.revision import FleetError, FleetRevision
from compute_agent.fleet.source import TlsIdentity
from compute_agent.model.messages import ConfigError
from compute_agent.optional_packages import require_cryptography


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """What ``[fleet]`` says; ``folder`` is the state folder."""

    group: str
    source: str
    public_keys: tuple[str, ...]
    secured: TlsIdentity
    interval: float
    folder: Path

    @classmethod
    def of(cls, conf: cfg.ConfigOpts) -> FleetSettings | None:
        """None where the host is of no group.

        :raises ConfigError: something is missing.
        """
        options = conf.fleet
        if not options.group:
            return None
        for name in ("source", "public_keys"):
            if not options[name]:
                raise ConfigError(f"[fleet] group = {options.group} needs [fleet] {name}: set it")
        require_cryptography("[fleet] group")
        if bool(options.certfile) != bool(options.keyfile):
            raise ConfigError("[fleet] certfile and keyfile belong together: set both, or none")
        try:
            source.check(options.source)
        except FleetError as error:
            raise ConfigError(str(error)) from error
        folder = Path(conf.state_path)
        keys = tuple(options.public_keys)
        secured = TlsIdentity(options.cafile, options.certfile, options.keyfile)
        return cls(options.group, options.source, keys, secured, options.interval, folder)

    def kept(self) -> FleetRevision | None:
        """The revision that the host works by.

        :raises FleetError: what is kept cannot be used.
        """
        return self._read(kept.KEPT)

    def refused(self) -> FleetRevision | None:
        """The revision that was offered last and is not taken up; None, too, if what is kept is none."""
        try:
            return self._read(kept.OFFERED)
        except FleetError:
            return None

    def _read(self, name: str) -> FleetRevision | None:
        content = kept.read(self.folder / name)
        return None if content is None else self.read(content)

    def read(self, content: bytes) -> FleetRevision:
        """The revision of a file.

        :raises FleetError: it is none that this host believes.
        """
        from compute_agent.fleet import signing  # needs cryptography, which only those have who use this

        return signing.read(content, self.public_keys)


def with_kept(conf: cfg.ConfigOpts) -> cfg.ConfigOpts:
    """The configuration of a host's own files, with what is kept of the fleet below them.

    :raises ConfigError: what is kept cannot be used; without it the host would be another one.
    :raises cfg.Error: they do not go together.
    """
    fleet = FleetSettings.of(conf)
    if fleet is None:
        return conf
    path = fleet.folder / kept.KEPT
    try:
        return conf if fleet.kept() is None else with_file(conf, path)
    except FleetError as error:
        raise ConfigError(
            f"{path}, settings of the fleet, cannot be used: {error}. `compute-agent run` gets them anew when"
            " it starts, if [fleet] source has them"
        ) from error


def with_file(conf: cfg.ConfigOpts, below: Path) -> cfg.ConfigOpts:
    """The configuration of a host's own files, with a revision below them in place of any other.

    :raises cfg.Error: they do not go together.
    """
    of_fleet = Path(conf.state_path) / kept.KEPT
    own = [name for name in conf.config_file or () if Path(name) != of_fleet]
    folders = [argument for name in conf.config_dir or () for argument in ("--config-dir", name)]
    return agent_conf.load(folders, own, [str(below)])


def problems(path: Path, conf: cfg.ConfigOpts) -> list[str]:
    """What of a revision in a file may not be there, or has no effect: a sentence each.

    :param conf: that of the host, which tells how it signs in to Placement.
    :raises cfg.Error: it is no ini file.
    :raises FleetError: what it has of guests cannot be meant.
    """
    options = agent_conf.known_options(conf)
    text = written.read([path])
    guests.parse(text)
    known: dict[str, set[str]] = {rules.DEFAULT: set()}
    for section, some in options:
        known.setdefault(section, set()).update(written.names_of(some))
    unknown = written.unknown_options(text, known, [*agent_conf.free_sections(conf), GUEST])
    return rules.forbidden(text, options, conf.placement.auth_section) + unknown


def origins(conf: cfg.ConfigOpts) -> dict[Path, str]:
    """How the files of a configuration are called that are not the host's own."""
    fleet = FleetSettings.of(conf)
    if fleet is None:
        return {}
    path = fleet.folder / kept.KEPT
    try:
        revision = fleet.kept()
    except FleetError:
        return {}
    return {} if revision is None else {path: f"fleet {revision} ({path})"}


def overruled(conf: cfg.ConfigOpts) -> list[str]:
    """Options of the revision that the host's own files set, too: ``[section] option`` each."""
    files = list(written.files_of(conf))
    ours = [path for path in files if path in origins(conf)]
    theirs = written.read([path for path in files if path not in ours])
    return [
        f"[{section}] {name}"
        for section, options in written.read(ours).items()
        for name in options
        if name in theirs.get(section, {})
    ]
