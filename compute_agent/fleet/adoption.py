"""Adoption of revisions: read the source, try its revision, and adopt or refuse it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from oslo_config import cfg

from compute_agent.files import secure_folder
from compute_agent.fleet import configuration, revision, source
from compute_agent.fleet.configuration import FleetSettings, revision_problems, with_file
from compute_agent.fleet.revision import FleetError, FleetRevision
from compute_agent.model.messages import ConfigError

LOG = logging.getLogger(__name__)


class ConfigurationCheck(Protocol):
    """Checks whether the host can use a configuration."""

    def __call__(self, options: cfg.ConfigOpts, /) -> None:
        """Build the agent's objects from the options, and discard them.

        :raises ConfigError: the host cannot use the options.
        :raises OSError: the host cannot be read.
        """
        ...


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
    :param check: checks the configuration with a revision.
    :param but_for: types of errors that would prevent a start with any settings. Such an error is not noted
        as a failed start.
    :raises ConfigError: a required option of ``[fleet]`` is missing or wrong.
    """
    fleet = FleetSettings.from_options(conf)
    if fleet is None:
        yield
        return
    has_failed = configuration.has_failed(fleet.folder)
    _get_usable(fleet, conf, check, has_failed)
    try:
        yield
    # Any error can come from these settings, so the next start asks the source for other settings.
    except Exception as error:
        if not isinstance(error, but_for):
            _write_note(configuration.note_failure, fleet.folder)
        raise
    if has_failed:
        _write_note(configuration.forget_failure, fleet.folder)


def _write_note(note: Callable[[Path], None], folder: Path) -> None:
    try:
        note(folder)
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
            check(with_file(conf, fleet.folder / configuration.KEPT_FILE))
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
    :param check: checks the configuration with the offered revision.
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
    path = configuration.keep_offered(fleet.folder, content)
    try:
        # Options are checked first, because errors of the next check quote values. Forbidden options can have
        # secrets as values.
        if found := revision_problems(path, conf):
            raise ConfigError("; ".join(found))
        check(with_file(conf, path))
    except (cfg.Error, ConfigError, FleetError, OSError, ValueError) as error:
        raise FleetError(f"the revision {offered} is refused: {error}") from error
    configuration.take_up(fleet.folder)
    return offered
