"""The configuration of a host: the options of its own files, and the options of the adopted revision.

The state folder has the files of the adopted revision and of the last offered revision.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oslo_config import cfg

from compute_agent import conf as agent_conf
from compute_agent.conf import written
from compute_agent.conf.fleet import GUEST
from compute_agent.files import read_own, remove_durably, sync_folder, write_durably
from compute_agent.fleet import guests, source
from compute_agent.fleet.revision import DEFAULT_SECTION, FleetError, FleetRevision, forbidden_options
from compute_agent.fleet.source import TlsIdentity
from compute_agent.model.messages import ConfigError, require_cryptography

KEPT_FILE: Final = "fleet.conf"
"""Name of the file with the adopted revision, in the state folder."""
OFFERED_FILE: Final = "fleet-offered.conf"
"""Name of the file with an offered revision, in the state folder. The file is renamed when the revision is
adopted.
"""

FAILED_FILE: Final = "fleet-failed"
"""Name of an empty file in the state folder. The file exists from a failed start to the next successful
start.
"""

# The owner writes, and the group may read, as with other configuration files.
_MODE: Final = 0o640


def read_kept(path: Path) -> bytes | None:
    """The content of the file of a revision; None if the file does not exist.

    :raises FleetError: the file cannot be read, or another user could have written it.
    """
    try:
        return read_own(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FleetError(f"{path} cannot be read: {error.strerror or error}") from error


def keep_offered(folder: Path, content: bytes) -> Path:
    """Write an offered revision to the state folder, where it can be tried. Returns the path of its file.

    :raises FleetError: the file cannot be written. The adopted revision does not change.
    """
    path = folder / OFFERED_FILE
    with suppress(FleetError):
        if read_kept(path) == content:  # the revision was refused before, and is tried again
            return path
    try:
        write_durably(path, content, _MODE)
    except OSError as error:
        raise FleetError(f"{path} cannot be written: {error.strerror or error}") from error
    return path


def take_up(folder: Path) -> None:
    """Adopt the offered revision that is stored in the state folder.

    :raises FleetError: the file of the adopted revision cannot be replaced.
    """
    # A rename is atomic: after a crash the file is either the whole old file or the whole new file.
    try:
        os.replace(folder / OFFERED_FILE, folder / KEPT_FILE)
        sync_folder(folder)
    except OSError as error:
        raise FleetError(f"{folder / KEPT_FILE} cannot be replaced: {error.strerror or error}") from error


def has_failed(folder: Path) -> bool:
    """Whether a failed start of the agent is noted in this state folder."""
    return (folder / FAILED_FILE).exists()


def note_failure(folder: Path) -> None:
    """Note in the state folder that a start of the agent has failed.

    :raises OSError: the note cannot be written.
    """
    write_durably(folder / FAILED_FILE, b"", _MODE)


def forget_failure(folder: Path) -> None:
    """Remove the note of a failed start.

    :raises OSError: the note cannot be removed.
    """
    with suppress(FileNotFoundError):
        remove_durably(folder / FAILED_FILE)


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
        return self._read(KEPT_FILE)

    def refused_revision(self) -> FleetRevision | None:
        """The last revision that was offered and refused; None if no such revision can be read."""
        try:
            return self._read(OFFERED_FILE)
        except FleetError:
            return None

    def _read(self, name: str) -> FleetRevision | None:
        content = read_kept(self.folder / name)
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
    path = fleet.folder / KEPT_FILE
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
    of_fleet = Path(conf.state_path) / KEPT_FILE
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
    known: dict[str, set[str]] = {DEFAULT_SECTION: set()}
    for section, some in options:
        known.setdefault(section, set()).update(written.names_of(some))
    unknown = written.unknown_options(text, known, [*agent_conf.free_sections(conf), GUEST])
    return forbidden_options(text, options, conf.placement.auth_section) + unknown


def file_origins(conf: cfg.ConfigOpts) -> dict[Path, str]:
    """The text that names the adopted revision in messages, by path of its file; empty without one."""
    fleet = FleetSettings.from_options(conf)
    if fleet is None:
        return {}
    path = fleet.folder / KEPT_FILE
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
