"""The configuration of a host: the options of its own files, and the options of the adopted revision."""

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
    """The options of ``[fleet]``, and the agent's state folder.

    :ivar source: the folder or HTTPS address that has the files of the groups.
    :ivar public_keys: the Ed25519 keys in base64. One of them must have signed a revision.
    :ivar secured: the certificates for a source over HTTPS.
    :ivar interval: the seconds between two reads of the source.
    :ivar folder: the agent's state folder, with the adopted and the refused revision.
    """

    group: str
    source: str
    public_keys: tuple[str, ...]
    secured: TlsIdentity
    interval: float
    folder: Path

    @classmethod
    def from_options(cls, conf: cfg.ConfigOpts) -> FleetSettings | None:
        """The settings in a configuration; None if the host is in no group.

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
        """The adopted revision in the state folder; None if the host has adopted no revision.

        :raises FleetError: the file of the adopted revision cannot be used.
        """
        return self._read(kept.KEPT)

    def refused_revision(self) -> FleetRevision | None:
        """The last revision that was offered and refused; None if no such revision can be read."""
        try:
            return self._read(kept.OFFERED)
        except FleetError:
            return None

    def _read(self, name: str) -> FleetRevision | None:
        content = kept.read(self.folder / name)
        return None if content is None else self.read(content)

    def read(self, content: bytes) -> FleetRevision:
        """Parse the content of a file, and verify its signature.

        :raises FleetError: the content is not a revision, or none of the host's keys has signed it.
        """
        from compute_agent.fleet import signature  # needs cryptography, which is an optional package

        return signature.read(content, self.public_keys)


def with_kept(conf: cfg.ConfigOpts) -> cfg.ConfigOpts:
    """The configuration of a host with its adopted revision; options of the host's own files take precedence.

    :raises ConfigError: the adopted revision cannot be used. The agent then does not continue, because
        without this revision the host would behave differently.
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
    """The configuration of a host with the revision in the file ``below``, in place of the adopted revision.

    Options of the host's own files take precedence over the revision.

    :raises cfg.Error: a value is wrong.
    """
    of_fleet = Path(conf.state_path) / kept.KEPT
    # A configuration with the adopted revision names the file of this revision, which must not overrule
    # ``below``.
    own = [name for name in conf.config_file or () if Path(name) != of_fleet]
    folders = [argument for name in conf.config_dir or () for argument in ("--config-dir", name)]
    return agent_conf.load(folders, own, [str(below)])


def revision_problems(path: Path, conf: cfg.ConfigOpts) -> list[str]:
    """A sentence for each forbidden or unknown option of a revision.

    :param path: the file with the revision.
    :param conf: the configuration of the host. It names the section with the agent's credentials for
        Placement.
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
    """The text that names the adopted revision in messages, by path of its file; empty without one."""
    fleet = FleetSettings.from_options(conf)
    if fleet is None:
        return {}
    path = fleet.folder / kept.KEPT
    try:
        revision = fleet.kept_revision()
    except FleetError:
        # The thread that reads the source reports a revision that cannot be used.
        return {}
    return {} if revision is None else {path: f"fleet {revision} ({path})"}


def overruled_options(conf: cfg.ConfigOpts) -> list[str]:
    """The options in both the adopted revision and the host's own files, each as ``[section] option``."""
    files = list(written.files_of(conf))
    ours = [path for path in files if path in file_origins(conf)]
    theirs = written.read([path for path in files if path not in ours])
    return [
        f"[{section}] {name}"
        for section, options in written.read(ours).items()
        for name in options
        if name in theirs.get(section, {})
    ]
