"""One look at the source, and what comes of it: nothing, a revision that is taken up, or one that is not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from oslo_config import cfg

from compute_agent.files import secure_folder
from compute_agent.fleet import kept, rules, source
from compute_agent.fleet.configuration import FleetSettings, problems, with_file
from compute_agent.fleet.revision import FleetError, FleetRevision
from compute_agent.model.messages import ConfigError

LOG = logging.getLogger(__name__)


class ConfigurationCheck(Protocol):
    """Tries a configuration on this host."""

    def __call__(self, options: cfg.ConfigOpts, /) -> None:
        """Make what follows from the options, and drop it.

        :raises ConfigError: the host cannot work by it.
        :raises OSError: the host cannot be read.
        """
        ...


@contextmanager
def starting(
    conf: cfg.ConfigOpts, check: ConfigurationCheck, but_for: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """While an agent starts: by a revision that it can use, if one is kept or the source has it now.

    So a host is not made twice, first without the settings of its fleet and a moment later with them; and one
    that what it keeps does not fit any more, or with which the agent did not come through its last start, can
    be mended from afar.

    :param conf: the configuration of the host's own files.
    :param but_for: what keeps an agent from starting whatever its settings are.
    :raises ConfigError: ``[fleet]`` is not complete.
    """
    fleet = FleetSettings.of(conf)
    if fleet is None:
        yield
        return
    has_failed = kept.has_failed(fleet.folder)
    _get_usable(fleet, conf, check, has_failed)
    try:
        yield
    except Exception as error:
        if not isinstance(error, but_for):
            _remember(kept.note_failure, fleet.folder)
        raise
    if has_failed:
        _remember(kept.forget_failure, fleet.folder)


def _remember(note: Callable[[Path], None], folder: Path) -> None:
    try:
        note(folder)
    except OSError as error:
        LOG.warning("How the agent started cannot be remembered: %s", error)


def _get_usable(
    fleet: FleetSettings, conf: cfg.ConfigOpts, check: ConfigurationCheck, has_failed: bool
) -> None:
    try:
        secure_folder(fleet.folder)
        if fleet.kept() is not None:
            check(with_file(conf, fleet.folder / kept.KEPT))
            if not has_failed:
                return
            LOG.warning(
                "The agent did not come through its last start: other settings of the fleet are looked for"
            )
    except (FleetError, ConfigError, cfg.Error, OSError) as error:
        LOG.error("What is kept of the fleet's settings cannot be used: %s", error)
    try:
        follow(fleet, conf, check)
    except FleetError as error:
        LOG.error("There are no other settings of the fleet to start with: %s", error)


def follow(fleet: FleetSettings, conf: cfg.ConfigOpts, check: ConfigurationCheck) -> FleetRevision | None:
    """The revision that has been taken up now; None if the source has the one that the host works by.

    :param conf: the configuration of the host, with a revision or without.
    :raises FleetError: the source cannot be read, or what it has is not taken up. Nothing changed then.
    """
    content = source.fetch(fleet.source, fleet.group, fleet.secured)
    offered = fleet.read(content)
    try:
        present = fleet.kept()
    except FleetError:
        present = None  # it is replaced
    now = datetime.now(UTC)
    if present is not None and present.digest == offered.digest:
        if sentence := rules.expiry(present, now):
            raise FleetError(f"{present} is in force, but {sentence}")
        return None
    known = [each for each in (present, fleet.refused()) if each is not None]
    if reason := rules.refusal(offered, fleet.group, known, now):
        raise FleetError(f"the revision {offered} is not taken up: {reason}")
    path = kept.keep_offered(fleet.folder, content)
    try:
        if found := problems(path, conf):  # first: values may be of other options, and are in errors
            raise ConfigError("; ".join(found))
        check(with_file(conf, path))
    except (cfg.Error, ConfigError, FleetError, OSError, ValueError) as error:
        raise FleetError(f"the revision {offered} is not taken up: {error}") from error
    kept.take_up(fleet.folder)
    return offered
