"""Memory limits of domains: ``oom_score_adj`` of QEMU's process, and libvirt's soft limit.

A score is written to the process, and a record on disk says that it is the agent's. A soft limit is set
through libvirt, and a note in the definition of the domain says that it is the agent's. Values of other
programs stay.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from compute_agent.drivers import procfs
from compute_agent.drivers.base import UNLIMITED, MemoryLimits
from compute_agent.drivers.foreign.records import ValueRecord, ValueRecords
from compute_agent.drivers.libvirt.connection import LibvirtConnection
from compute_agent.drivers.libvirt.domain_definition import SOFT_LIMIT
from compute_agent.drivers.libvirt.domain_table import DomainTable
from compute_agent.drivers.libvirt.running_domain import RunningDomain
from compute_agent.drivers.memory_limits import OomScores, ScoreComparison
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError

LOG = logging.getLogger(__name__)

_KIB: Final = 1024


class DomainMemory:
    """Compares and sets the memory limits of domains. Any thread is allowed to call the methods."""

    def __init__(self, connection: LibvirtConnection, table: DomainTable, records: ValueRecords) -> None:
        """:param records: the runs of domains in which the agent has set ``oom_score_adj``."""
        self._connection, self._table, self._records = connection, table, records
        self._scores = OomScores()

    def memory_limits(self, guest: Guest, wanted: MemoryLimits) -> MemoryLimits | None:
        """The ``oom_score_adj`` of the QEMU process and the soft limit, if they differ from ``wanted``.

        Values that another program has set in the definition or for the process do not count as differences.
        The field ``high`` has the soft limit.
        """
        known = self._table.find_living(guest)
        scores = self._compare_scores(known, wanted)
        live, defined = _soft_limit_differs(known, wanted)
        if scores.goal is None and not live and not defined:
            return None
        limit = known.soft_limit if live else known.definition.soft_limit
        high = UNLIMITED if limit is None else limit * _KIB
        return MemoryLimits(high=high if live or defined else None, oom_score_adj=scores.present)

    def limit_memory(self, guest: Guest, wanted: MemoryLimits) -> bool:
        """Write ``oom_score_adj`` of the QEMU process and the soft limit if they differ from ``wanted``."""
        if self.memory_limits(guest, wanted) is None:
            return False
        try:
            self._set_score(self._table.find_living(guest), wanted)
        except OSError as error:
            raise DriverError(f"the memory of guest {guest} cannot be limited: {error}") from error
        self._set_soft_limit(guest, wanted)
        return True

    def _set_score(self, known: RunningDomain, wanted: MemoryLimits) -> None:
        """Write the ``oom_score_adj`` of the QEMU process where it differs from the wanted score.

        :raises OSError: the score cannot be written, or the agent cannot store that the score is its own.
        """
        score = self._compare_scores(known, wanted).goal
        if score is None:
            return
        with self._table.changing:
            # The record is saved before the score is written. After a crash between the two, the next agent
            # still knows the score as its own.
            record = self._record_of(known)
            self._records.save(replace(record, scored=True))
            self._scores.write(known.guest, [known.guest.pid], score)
            if score == 0:
                self._records.save(replace(record, scored=False))

    def _compare_scores(self, known: RunningDomain, wanted: MemoryLimits) -> ScoreComparison:
        """See :meth:`OomScores.compare_scores`."""
        guest, is_own = known.guest, self._record_of(known).scored
        return self._scores.compare_scores(guest, [guest.pid], wanted.oom_score_adj, is_own)

    def _record_of(self, known: RunningDomain) -> ValueRecord:
        return self._records.record_of(known.guest.uuid, known.guest.name, _run_text(known.process.identity))

    def forget_ended(self) -> None:
        """Remove the records of runs that have ended; log a warning if one cannot be removed."""
        with self._table.changing:
            for record in self._records.all_records():
                pid = record.run.partition(" ")[0]
                main = procfs.identify_process(int(pid)) if pid.isdecimal() else None
                if main is not None and _run_text(main) == record.run:
                    continue
                try:
                    self._records.save(replace(record, scored=False))
                except OSError as error:
                    LOG.warning("The record of domain %s, which has ended, stays: %s", record.name, error)

    def _set_soft_limit(self, guest: Guest, wanted: MemoryLimits) -> None:
        """Set the soft limit of the running domain and its definition if it differs from ``wanted``.

        The agent first notes in the definition that the limit is its own. A refusal of libvirt is logged.
        """
        with self._table.changing:
            known = self._table.find_living(guest)
            live, defined = _soft_limit_differs(known, wanted)
            if not live and not defined:
                return
            kib = _soft_limit_kib(wanted)
            with self._table.change_domain(known, "does not accept limits of memory") as tuning:
                try:
                    known.note_definition(tuning.note_items(known.definition, {SOFT_LIMIT}))
                    if live:
                        tuning.set_soft_limit(kib, persistent=False)
                        known.soft_limit = kib
                    if defined:
                        tuning.set_soft_limit(kib, persistent=True)
                        known.note_definition(replace(known.definition, soft_limit=kib))
                except self._connection.libvirt.libvirtError as error:
                    if not tuning.is_refusal(error):
                        raise
                    known.refused_soft_limit = str(error)
                    LOG.warning("The memory of guest %s cannot be limited: %s", guest, error)


def _run_text(main: procfs.ProcessIdentity) -> str:
    """The run of a domain in its record."""
    return f"{main.pid} {main.start_time}"


def _soft_limit_kib(wanted: MemoryLimits) -> int | None:
    return None if wanted.high is None or wanted.high >= UNLIMITED else wanted.high // _KIB


def _soft_limit_differs(known: RunningDomain, wanted: MemoryLimits) -> tuple[bool, bool]:
    """Whether to set the soft limit of the running domain, and whether to set the one in its definition."""
    definition = known.definition
    if wanted.high is None or known.refused_soft_limit:
        return False, False
    kib, own = _soft_limit_kib(wanted), SOFT_LIMIT in definition.own_items
    if definition.soft_limit is not None and not own:
        # A limit of another program in the definition stays on the running domain, too.
        return False, False
    live = known.soft_limit != kib and (own or known.soft_limit is None)
    defined = definition.soft_limit != kib and (own or definition.soft_limit is None)
    return live, defined and definition.persistent
