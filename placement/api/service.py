"""The objects that all requests of a worker share, and explanations of empty answers in the log.

An empty answer is a list of allocation candidates without a candidate. Its explanation is computed after the
answer, so that no request waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from threading import BoundedSemaphore, Lock, Thread
from typing import Final, TypeVar

from oslo_config import cfg

from placement.api.context import RequestContext
from placement.conf.reservations import limited_classes
from placement.db import migration
from placement.db.database import ServiceDatabase, WriteTransaction
from placement.db.engine import PoolOptions
from placement.exceptions import Unavailable
from placement.maintenance.sync import sync
from placement.microversion import Microversion
from placement.policies.enforcer import PolicyEnforcer
from placement.read_model.feed import LONG_REQUESTS, ReadModel
from placement.read_model.model_file import ModelFile
from placement.schemas.candidates import request_forms
from placement.schemas.request_form import RequestForms
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.claims.timetable import WindowTimetable
from placement.search.diagnosis.explanation import explain_request
from placement.search.diagnosis.sentences import explanation_sentence
from placement.search.rendering import ProviderSummaries
from placement.search.request import CandidatesRequest
from placement.store import due_changes, known_names
from placement.store.booking_limits import BookingLimits

LOG = logging.getLogger(__name__)

Question = tuple[bytes, Microversion]
"""The query string of a request for candidates, and its microversion."""

_REMEMBERED: Final = 64
"""Maximum number of questions for which explanations are remembered."""
_SHARE: Final = 20
"""After an explanation, there is a pause: this number of seconds for each second of CPU time that it took."""
_PAUSE: Final = 0.001
"""Seconds of pause between two slices of an explanation, in which the worker answers requests."""
_SLICE: Final = 0.002
"""Seconds of CPU time after which a slice of an explanation ends."""


class EmptyAnswerExplainer:
    """Explains empty answers in a separate thread, one at a time, with a small share of a processor.

    While the read model does not change, the same question gets the same explanation again, from a cache.

    :param deadline: maximum seconds of CPU time of one explanation.
    """

    def __init__(self, model: ReadModel, deadline: float) -> None:
        self._model = model
        self._deadline = deadline
        self._lock = threading.Lock()
        self._busy = False
        self._not_before = 0.0
        self._skipped = 0
        #: for each question, its explanation, with the number of updates of the read model at that time
        self._said: dict[Question, tuple[int, str]] = {}

    def explain_answer(self, question: Question, request: CandidatesRequest, caller: RequestContext) -> None:
        """Log why this request has no candidates, either immediately or after the explanation is computed.

        The record in the log has the request ids of the caller.

        While another explanation is computed, and in the pause after it, empty answers are only counted.
        """
        with self._lock:
            refreshed, said = self._said.get(question, (-1, ""))
            # a remembered explanation is valid as long as the read model is unchanged
            if refreshed != self._model.refreshed:
                if self._busy or time.monotonic() < self._not_before:
                    self._skipped += 1
                    return
                self._busy, said = True, ""
        if said:
            LOG.info("There are no allocation candidates: %s.", said)
        else:
            arguments = (question, request, caller)
            # the thread is a daemon, so that the process can end during an explanation
            threading.Thread(target=self._run, args=arguments, name="explain", daemon=True).start()

    def _run(self, question: Question, request: CandidatesRequest, caller: RequestContext) -> None:
        # log records of this thread get the ids of the request
        caller.update_store()
        began = time.thread_time()
        try:
            self._explain_request(question, request)
        except Unavailable as error:
            LOG.debug("An empty list of candidates is not explained: %s", error)
        except BudgetExhausted:
            LOG.info(
                "There are no allocation candidates; the explanation would take more than %g seconds"
                " ([api] explanations_deadline).",
                self._deadline,
            )
        except Exception:
            LOG.exception("An empty list of candidates could not be explained")
        finally:
            with self._lock:
                self._busy = False
                self._not_before = time.monotonic() + _SHARE * (time.thread_time() - began)

    def _explain_request(self, question: Question, request: CandidatesRequest) -> None:
        with self._model.pinned_snapshot() as (snapshot, refreshed):
            # the explanation pauses after each short slice, so that requests can use the interpreter
            budget = SearchBudget(self._deadline, yield_lock=lambda: time.sleep(_PAUSE), first_slice=_SLICE)
            explanation = explain_request(snapshot, request, budget)
        if explanation.fitting:
            LOG.info(
                "There were no allocation candidates, but now %s hosts have candidates for the same request.",
                explanation.fitting,
            )
            return
        said = explanation_sentence(explanation)
        with self._lock:
            # the first item of a dictionary is the oldest one, so the oldest explanations are dropped
            while len(self._said) >= _REMEMBERED:
                del self._said[next(iter(self._said))]
            self._said[question] = (refreshed, said)
            skipped, self._skipped = self._skipped, 0
        others = f" ({skipped} other empty answers before were not explained)" if skipped else ""
        LOG.info("There are no allocation candidates: %s.%s", said, others)


T = TypeVar("T")

# in most cases, the preparation of the database takes less time
_LOCK_TIMEOUT: Final = 3.0
"""Maximum seconds for which a request waits while another request prepares the database."""


@dataclass
class PlacementService:
    """Objects that all requests of a worker share: configuration, database, read model, policy, caches."""

    conf: cfg.ConfigOpts
    database: ServiceDatabase
    model: ReadModel
    enforcer: PolicyEnforcer
    explainer: EmptyAnswerExplainer | None = None
    """The object that explains empty answers; None if the operator has turned explanations off."""
    request_forms: RequestForms = field(default_factory=dict)
    """Fields in the body of a request, such as a flavor, that replace the query string for candidates."""
    waiting: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(0))
    """A semaphore that limits the number of requests which wait for changes."""
    summaries: ProviderSummaries = field(default_factory=ProviderSummaries)
    """JSON of provider summaries, which later answers with allocation candidates use again."""
    _prepared: int | None = None
    """The value of ``model.reread`` at the last preparation of the database; None before the first one."""
    _failed: bool = False
    """Whether the last preparation of the database failed."""
    _lock: Lock = field(default_factory=Lock)

    @classmethod
    def from_options(
        cls,
        conf: cfg.ConfigOpts,
        open_database: Callable[[str, PoolOptions], ServiceDatabase] = ServiceDatabase,
    ) -> PlacementService:
        """Return the service for a configuration, without a connection to the database yet."""
        group = conf.placement_database
        options = PoolOptions(
            max_pool_size=group.max_pool_size,
            max_overflow=group.max_overflow,
            pool_timeout=group.pool_timeout,
            connection_recycle_time=group.connection_recycle_time,
            lock_timeout=group.lock_timeout,
            retries=conf.placement.allocation_conflict_retry_count,
            connect_timeout=group.connect_timeout,
            statement_timeout=group.statement_timeout,
            idle_timeout=group.idle_in_transaction_timeout,
            wsrep_sync_wait=group.mysql_wsrep_sync_wait,
        )
        database = open_database(group.connection, options)
        # only placement-api has the option ``threads``, on its command line; other servers do not have it
        long_requests = max(1, conf.threads // 2) if "threads" in conf else LONG_REQUESTS
        file = ModelFile(conf.placement.model_file) if conf.placement.model_file else None
        model = ReadModel(database, long_requests, due_changes.give_back_expired, file)
        explainer = (
            EmptyAnswerExplainer(model, conf.api.explanations_deadline) if conf.api.explain_empty else None
        )
        threads = conf.threads if "threads" in conf else 0
        asked = conf.api.waiting_requests
        # by default, at most a quarter of the threads can wait for changes, so that all other threads are
        # free for short requests
        waiting = BoundedSemaphore(threads // 4 if asked is None else asked)
        return cls(conf, database, model, PolicyEnforcer(conf), explainer, request_forms(conf), waiting)

    @cached_property
    def window_timetable(self) -> WindowTimetable:
        """The amounts of all providers over time. The start of the worker or the first search reads them."""
        return WindowTimetable(self.model, self.database)

    @property
    def booking_limits(self) -> BookingLimits:
        """The limits on reservations from the configuration."""
        conf = self.conf.reservations
        options = (conf.max_duration, conf.max_ahead, conf.max_project_reservations)
        duration, ahead, number = (None if each < 0 else each for each in options)
        amounts, hours = conf.max_project_amounts, conf.max_project_hours
        return BookingLimits(duration, ahead, number, amounts, hours, conf.hours_period)

    def write(self, work: Callable[[WriteTransaction], T]) -> T:
        """Run ``work`` in a transaction. If it fails, release expired amounts, if any, and run it again."""
        return due_changes.write_with_room(self.database, work)

    def prepare_database(self) -> None:
        """Migrate the database if the configuration asks for it, and create the standard names.

        Each worker prepares the database once, and again if the database was perhaps replaced. After a
        failure, later requests try again, so a worker can start before its database. Only one request at a
        time prepares the database. Other requests wait at most three seconds for it, and do not wait after a
        failure.

        :raises Unavailable: the database does not answer, or does not have a usable schema.
        """
        # after the read model has read everything again, the database is prepared again. Perhaps the database
        # was replaced, and its schema or names are missing.
        if self._prepared == self.model.reread:
            return
        # after a failure, one request at a time tries again, and all other requests get an error immediately
        if not self._lock.acquire(timeout=0 if self._failed else _LOCK_TIMEOUT):
            raise Unavailable("The service is waiting for its database. Please try again later.")
        try:
            self._prepare_once()
            self._failed = False
        except BaseException:
            self._failed = True
            raise
        finally:
            self._lock.release()

    def _prepare_once(self) -> None:
        reread = self.model.reread
        # perhaps another request has prepared the database while this request waited for the lock
        if self._prepared != reread:
            url = self.conf.placement_database.connection
            if self.conf.placement_database.sync_on_startup:
                sync(self.conf)
            present = migration.require_schema(url)
            # a database that a newer release has migrated can be used, so that two releases of the service
            # can share a database during an upgrade
            if present != migration.newest_revision():
                LOG.warning(
                    "The database is at revision %s, which a later version of this service made; upgrade"
                    " this service, too",
                    present,
                )
            additional = self.conf.placement.additional_resource_classes
            self.database.write(lambda tx: known_names.make_standard_names(tx, additional))
            self._warn_of_limits()
            self._prepared = reread

    def _warn_of_limits(self) -> None:
        limited = limited_classes(self.conf)
        # most configurations have no limits, and then the database is not read
        if not limited:
            return
        with self.database.read() as conn:
            unknown = known_names.unknown_classes(conn, limited)
        if unknown:
            LOG.warning(
                "The limits of projects in [reservations] name unknown resource classes: %s. These limits"
                " have no effect until the classes exist.",
                ", ".join(unknown),
            )

    def prepare_in_background(self) -> None:
        """Prepare the database and read windows in a separate thread, while the worker answers requests."""

        def prepare_all() -> None:
            self.try_to_prepare()
            if not self._failed:
                self.window_timetable.read_ahead()

        Thread(target=prepare_all, name="prepare", daemon=True).start()

    def try_to_prepare(self) -> None:
        """Prepare the database; if this fails, log the error. Later requests try again and report it."""
        try:
            self.prepare_database()
        except Unavailable as error:
            LOG.error("The service is not ready yet: %s", error)
        except Exception:
            LOG.exception("The database cannot be prepared; later requests try again")
