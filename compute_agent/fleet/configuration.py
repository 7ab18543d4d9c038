"""The configuration of a host: the revision of its fleet, and its own files above that."""

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
from compute_agent.model.messages import ConfigError, require_cryptography


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """The options of ``[fleet]``, with the state folder."""

    group: str
    source: str
    public_keys: tuple[str, ...]
    secured: TlsIdentity
    interval: float
    folder: Path

    @classmethod
    def from_options(cls, conf: cfg.ConfigOpts) -> FleetSettings | None:
        """The settings of a configuration; None where the host is in no group.

        :raises ConfigError: an option is missing or wrong.
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
            source.check_source(options.source)
        except FleetError as error:
            raise ConfigError(str(error)) from error
        folder = Path(conf.state_path)
        keys = tuple(options.public_keys)
        secured = TlsIdentity(options.cafile, options.certfile, options.keyfile)
        return cls(options.group, options.source, keys, secured, options.interval, folder)

    def kept_revision(self) -> FleetRevision | None:
        """The adopted revision; None without one.

        :raises FleetError: the kept file cannot be used.
        """
        return self._read(kept.KEPT)

    def refused_revision(self) -> FleetRevision | None:
        """The last offered revision that was not adopted; None without one, or if its file cannot be used."""
        try:
            return self._read(kept.OFFERED)
        except FleetError:
            return None

    def _read(self, name: str) -> FleetRevision | None:
        content = kept.read(self.folder / name)
        return None if content is None else self.read(content)

    def read(self, content: bytes) -> FleetRevision:
        """The revision in the content of a file.

        :raises FleetError: the content is not a revision, or none of the host's keys has signed it.
        """
        from compute_agent.fleet import signature  # needs cryptography, which is an optional package

        return signature.read(content, self.public_keys)


def with_kept(conf: cfg.ConfigOpts) -> cfg.ConfigOpts:
    """The configuration of a host's own files above the adopted revision.

    :raises ConfigError: the kept revision cannot be used. Without that revision the host would behave
        differently.
    :raises cfg.Error: a value is wrong.
    """
    fleet = FleetSettings.from_options(conf)
    if fleet is None:
        return conf
    path = fleet.folder / kept.KEPT
    try:
        return conf if fleet.kept_revision() is None else with_file(conf, path)
    except FleetError as error:
        raise ConfigError(
            f"{path}, settings of the fleet, cannot be used: {error}. `compute-agent run` reads them again"
            " when it starts, if [fleet] source has them"
        ) from error


def with_file(conf: cfg.ConfigOpts, below: Path) -> cfg.ConfigOpts:
    """The configuration of a host's own files above the revision in ``below``, instead of any other.

    :raises cfg.Error: a value is wrong.
    """
    of_fleet = Path(conf.state_path) / kept.KEPT
    # Without the revision in force, which takes the place of ``below`` otherwise.
    own = [name for name in conf.config_file or () if Path(name) != of_fleet]
    folders = [argument for name in conf.config_dir or () for argument in ("--config-dir", name)]
    return agent_conf.load(folders, own, [str(below)])


def revision_problems(path: Path, conf: cfg.ConfigOpts) -> list[str]:
    """A sentence for each forbidden or unknown option of a revision.

    :param conf: the configuration of the host, which names the section with its credentials.
    :raises cfg.Error: the file is not an ini file.
    :raises FleetError: a setting of a guest is wrong.
    """
    options = agent_conf.known_options(conf)
    text = written.read([path])
    guests.parse(text)
    known: dict[str, set[str]] = {rules.DEFAULT: set()}
    for section, some in options:
        known.setdefault(section, set()).update(written.names_of(some))
    unknown = written.unknown_options(text, known, [*agent_conf.free_sections(conf), GUEST])
    return rules.forbidden_options(text, options, conf.placement.auth_section) + unknown


def file_origins(conf: cfg.ConfigOpts) -> dict[Path, str]:
    """The names of files in a configuration that are not the host's own."""
    fleet = FleetSettings.from_options(conf)
    if fleet is None:
        return {}
    path = fleet.folder / kept.KEPT
    try:
        revision = fleet.kept_revision()
    except FleetError:
        # The loop of the fleet reports a revision that cannot be used.
        return {}
    return {} if revision is None else {path: f"fleet {revision} ({path})"}


def overruled_options(conf: cfg.ConfigOpts) -> list[str]:
    """Options of the revision that the host's own files also set, each as ``[section] option``."""
    files = list(written.files_of(conf))
    ours = [path for path in files if path in file_origins(conf)]
    theirs = written.read([path for path in files if path not in ours])
    return [
        f"[{section}] {name}"
        for section, options in written.read(ours).items()
        for name in options
        if name in theirs.get(section, {})
    ]
