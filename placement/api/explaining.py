"""Says in the log why a list of allocation candidates was empty, and holds nobody up for that."""

import logging
import threading
import time
from typing import Final

from placement.api.context import RequestContext
from placement.exceptions import Unavailable
from placement.microversion import Microversion
from placement.model.feed import ReadModel
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.diagnosis.explanation import explain
from placement.search.diagnosis.sentences import sentence
from placement.search.request import CandidatesRequest

LOG = logging.getLogger(__name__)

Question = tuple[bytes, Microversion]
"""A query string, and the microversion that it is of."""

_REMEMBERED: Final = 64
_SHARE: Final = 20
"""After an explanation it takes so many times the work that it was until there is another."""
_PAUSE: Final = 0.001
"""Seconds between two slices, in which requests are answered."""
_SLICE: Final = 0.002


class EmptyAnswerExplainer:
    """Explains empty answers in a thread of its own, one at a time, and no more than a worker can spare.

    What was explained is remembered for as long as nothing changed.

    :param deadline: seconds of work that one explanation may take.
    """

    def __init__(self, model: ReadModel, deadline: float) -> None:
        self._model = model
        self._deadline = deadline
        self._lock = threading.Lock()
        self._busy = False
        self._not_before = 0.0
        self._skipped = 0
        #: by question what was said, and how often the model had been brought up to date then
        self._said: dict[Question, tuple[int, str]] = {}

    def tell(self, question: Question, request: CandidatesRequest, caller: RequestContext) -> None:
        """Log why this request has no candidates, with the ids of the caller's request: now or soon.

        While another one is explained, and for a while after, it is only counted.
        """
        with self._lock:
            refreshed, said = self._said.get(question, (-1, ""))
            if refreshed != self._model.refreshed:
                if self._busy or time.monotonic() < self._not_before:
                    self._skipped += 1
                    return
                self._busy, said = True, ""
        if said:
            LOG.info("There are no allocation candidates: %s.", said)
        else:
            arguments = (question, request, caller)
            threading.Thread(target=self._run, args=arguments, name="explain", daemon=True).start()

    def _run(self, question: Question, request: CandidatesRequest, caller: RequestContext) -> None:
        caller.update_store()
        began = time.thread_time()
        try:
            self._explain(question, request)
        except Unavailable as error:
            LOG.debug("An empty list of candidates is not explained: %s", error)
        except BudgetExhausted:
            LOG.info("There are no allocation candidates; why would take longer than %gs.", self._deadline)
        except Exception:
            LOG.exception("an empty list of candidates could not be explained")
        finally:
            with self._lock:
                self._busy = False
                self._not_before = time.monotonic() + _SHARE * (time.thread_time() - began)

    def _explain(self, question: Question, request: CandidatesRequest) -> None:
        with self._model.aside() as (snapshot, refreshed):
            budget = SearchBudget(self._deadline, give_way=lambda: time.sleep(_PAUSE), first_slice=_SLICE)
            explanation = explain(snapshot, request, budget)
        if explanation.fitting:
            LOG.info("There were no allocation candidates; by now %s hosts would do.", explanation.fitting)
            return
        said = sentence(explanation)
        with self._lock:
            while len(self._said) >= _REMEMBERED:
                del self._said[next(iter(self._said))]
            self._said[question] = (refreshed, said)
            skipped, self._skipped = self._skipped, 0
        others = f" ({skipped} other empty answers before were not explained)" if skipped else ""
        LOG.info("There are no allocation candidates: %s.%s", said, others)
