"""While a database does not answer at all, one request of a worker tries, and the others are told at once."""

import logging

from placement import outage
from placement.db import errors

LOG = logging.getLogger(__name__)


class DatabaseOutage(outage.PeerOutage):
    """Keeps requests from all waiting for a database that swallows what it is sent."""

    refusal = "The database does not answer. Please try again later."

    def is_unanswered(self, error: Exception) -> bool:
        """Whether nothing came back in time."""
        return errors.is_timeout(error)

    def log_begin(self, error: Exception) -> None:
        """What an operator looks at."""
        LOG.error(
            "the database does not answer: until it does, one request at a time waits for it, and others "
            "are answered 503; see the limits in [placement_database], and the network between"
        )

    def log_end(self, seconds: float) -> None:
        """When it was over."""
        LOG.warning("the database answers again, after %.0f seconds", seconds)
