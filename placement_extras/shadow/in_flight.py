"""Which requests are in flight together."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from placement_extras.shadow.exchange import MirroredRequest, ReceivedAnswer, ShadowRequest, is_write


@dataclass(slots=True)
class FlightTicket:
    """A request in flight."""

    number: int
    request: ShadowRequest
    started: float
    beside: set[int] = field(default_factory=set)


class InFlight:
    """Numbers requests as they come in, and makes a copy of each when it is answered.

    :param put: takes the copies, in the order of the answers; must not block.
    """

    def __init__(self, put: Callable[[MirroredRequest], None]) -> None:
        self._put: Final = put
        self._lock = threading.Lock()
        self._next = 0
        self._open: dict[int, FlightTicket] = {}

    def begin(self, request: ShadowRequest) -> FlightTicket:
        """A request came in; each ticket has to be given to :meth:`end`, once."""
        with self._lock:
            ticket = FlightTicket(self._next, request, time.monotonic())
            self._next += 1
            writes = is_write(request.method)
            for other in self._open.values():
                if writes:
                    other.beside.add(ticket.number)
                if is_write(other.request.method):
                    ticket.beside.add(other.number)
            self._open[ticket.number] = ticket
        return ticket

    def settled(self) -> float:
        """The time of the monotonic clock before which no write came in that is not answered yet."""
        with self._lock:
            now = time.monotonic()
            return min(
                (each.started for each in self._open.values() if is_write(each.request.method)), default=now
            )

    def end(
        self, ticket: FlightTicket, received: ReceivedAnswer | None, seconds: float, missed: str = ""
    ) -> None:
        """It was answered, or not, for the reason given."""
        with self._lock:
            del self._open[ticket.number]
            beside = frozenset(ticket.beside)
            self._put(
                MirroredRequest(
                    ticket.number, ticket.request, received, ticket.started, seconds, beside, missed
                )
            )
