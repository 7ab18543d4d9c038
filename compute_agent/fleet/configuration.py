"""The configuration of a host with the options of its fleet's revision, and the adoption of revisions.

The state folder has the files of the adopted revision and of the last offered revision. :func:`follow_source`
reads the source, tries its revision, and adopts or refuses it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from oslo_config import cfg

from compute_agent import conf as agent_conf
from compute_agent.conf import written
from compute_agent.conf.fleet import GUEST
from compute_agent.files import read_own, remove_durably, secure_folder, sync_folder, write_durably
from compute_agent.fleet import guests, revision, source
from compute_agent.fleet.revision import DEFAULT_SECTION, FleetError, FleetRevision, forbidden_options
from compute_agent.fleet.source import TlsIdentity
from compute_agent.model.messages import ConfigError, require_cryptography

LOG = logging.getLogger(__name__)

ConfigurationCheck = Callable[[cfg.ConfigOpts], None]
"""Checks whether the host can use a configuration: builds the agent's objects from the options, and discards
them. It raises ConfigError if the host cannot use the options, and OSError if the host cannot be read.
"""

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


@contextmanager
def _explain_errors(problem: str) -> Iterator[None]:
    """A context in which errors of the system become errors of the fleet."""
    try:
        yield
    except OSError as error:
        raise FleetError(f"{problem}: {error.strerror or error}") from error


def read_kept(path: Path) -> bytes | None:
    """The content of the file of a revision; None if the file does not exist.

    :raises FleetError: the file cannot be read, or another user could have written it.
    """
    with _explain_errors(f"{path} cannot be read"), suppress(FileNotFoundError):
        return read_own(path)
    return None


def keep_offered(folder: Path, content: bytes) -> Path:
    """Write an offered revision to the state folder, where it can be tried. Returns the path of its file.

    :raises FleetError: the file cannot be written. The adopted revision does not change.
    """
    path = folder / OFFERED_FILE
    with suppress(FleetError):
        if read_kept(path) == content:  # the revision was refused before, and is tried again
            return path
    with _explain_errors(f"{path} cannot be written"):
        write_durably(path, content, _MODE)
    return path


def take_up(folder: Path) -> None:
    """Adopt the offered revision that is stored in the state folder.

    :raises FleetError: the file of the adopted revision cannot be replaced.
    """
    # A rename is atomic: after a crash the file is either the whole old file or the whole new file.
    with _explain_errors(f"{folder / KEPT_FILE} cannot be replaced"):
        os.replace(folder / OFFERED_FILE, folder / KEPT_FILE)
        sync_folder(folder)


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
        kept = fleet.kept_revision()
    except FleetError:
        # The thread that reads the source reports a revision that cannot be used.
        return {}
    return {} if kept is None else {path: f"fleet {kept} ({path})"}


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


@contextmanager
def starting_with_fleet(
    conf: cfg.ConfigOpts, check: ConfigurationCheck, but_for: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Look for a usable revision before an agent starts, and note whether the start failed.

    A usable revision is taken from the state folder, or else from the source. The agent does this before it
    starts, because it would otherwise start without the settings of its fleet. If the adopted revision no
    longer fits the host, or the last start failed, the source is read for a newer revision, so that the fleet
    can repair the host. If no usable revision is found, the function only logs that.

    :param conf: the configuration of the host's own files.
    :param but_for: types of errors that would prevent a start with any settings. Such an error is not noted
        as a failed start.
    :raises ConfigError: a required option of ``[fleet]`` is missing or wrong.
    """
    fleet = FleetSettings.from_options(conf)
    if fleet is None:
        yield
        return
    has_failed = (fleet.folder / FAILED_FILE).exists()
    _get_usable(fleet, conf, check, has_failed)
    try:
        yield
    # Any error can come from these settings, so the next start asks the source for other settings.
    except Exception as error:
        if not isinstance(error, but_for):
            _note_start(fleet.folder, has_failed=True)
        raise
    if has_failed:
        _note_start(fleet.folder, has_failed=False)


def _note_start(folder: Path, has_failed: bool) -> None:
    """Note in the state folder whether the start of the agent has failed."""
    try:
        if has_failed:
            write_durably(folder / FAILED_FILE, b"", _MODE)
        else:
            remove_durably(folder / FAILED_FILE)
    except OSError as error:
        # Without the note, the only difference is that a later start does not ask the source for other
        # settings.
        LOG.warning("The agent cannot record whether its start has failed: %s", error)


def _get_usable(
    fleet: FleetSettings, conf: cfg.ConfigOpts, check: ConfigurationCheck, has_failed: bool
) -> None:
    try:
        secure_folder(fleet.folder)
        if fleet.kept_revision() is not None:
            check(with_file(conf, fleet.folder / KEPT_FILE))
            if not has_failed:
                return
            LOG.warning(
                "The agent's last start failed, so it asks the source for other settings of the fleet"
            )
    except (FleetError, ConfigError, cfg.Error, OSError) as error:
        LOG.error("The stored settings of the fleet cannot be used: %s", error)
    try:
        follow_source(fleet, conf, check)
    except FleetError as error:
        LOG.error("The source has no usable settings of the fleet: %s", error)


def follow_source(
    fleet: FleetSettings, conf: cfg.ConfigOpts, check: ConfigurationCheck
) -> FleetRevision | None:
    """Read the source, and adopt its revision. Returns the revision; None if the host has already adopted it.

    :param conf: the configuration of the host, with or without a revision.
    :raises FleetError: the source cannot be read, or its revision is refused. The adopted revision stays in
        force.
    """
    content = source.fetch(fleet.source, fleet.group, fleet.secured)
    offered = fleet.read(content)
    try:
        present = fleet.kept_revision()
    except FleetError:
        present = None  # an unusable file is replaced by the offered revision
    now = datetime.now(UTC)
    if present is not None and present.digest == offered.digest:
        if sentence := revision.expiry_reason(present, now):
            raise FleetError(f"{present} is in force, but {sentence}")
        return None
    # A refused revision counts, too: no other revision may have its generation.
    known = [each for each in (present, fleet.refused_revision()) if each is not None]
    if reason := revision.refusal_reason(offered, fleet.group, known, now):
        raise FleetError(f"the revision {offered} is refused: {reason}")
    path = keep_offered(fleet.folder, content)
    try:
        # Options are checked first, because errors of the next check quote values. Forbidden options can have
        # secrets as values.
        if found := revision_problems(path, conf):
            raise ConfigError("; ".join(found))
        check(with_file(conf, path))
    except (cfg.Error, ConfigError, FleetError, OSError, ValueError) as error:
        raise FleetError(f"the revision {offered} is refused: {error}") from error
    take_up(fleet.folder)
    return offered
