"""What ``placement-manage db sync`` and a service that starts with ``sync_on_startup`` do."""

import logging

from oslo_config import cfg

from placement.db import adoption, migration
from placement.exceptions import Conflict, Unavailable
from placement.maintenance.adopt import adopt
from placement.maintenance.importer import ImportOutcome
from placement.store.consumers import ConsumerOwnership

LOG = logging.getLogger(__name__)


def incomplete_owner(conf: cfg.ConfigOpts) -> ConsumerOwnership:
    """Whose consumers are that nobody is known to own."""
    options = conf.placement
    return ConsumerOwnership(
        options.incomplete_consumer_project_id, options.incomplete_consumer_user_id, None
    )


def sync(conf: cfg.ConfigOpts, revision: str = "head") -> ImportOutcome | None:
    """Bring the schema up to date; with ``[placement_database] adopt`` that of OpenStack Placement, too.

    :returns: what an adoption did, None if there was nothing to adopt.
    :raises Unavailable: the database does not answer, or this version cannot work with what is there.
    """
    url = conf.placement_database.connection
    outcome = None
    if conf.placement_database.adopt and _is_stock(migration.look(url)):
        try:
            outcome = adopt(url, incomplete_owner(conf), conf.placement.additional_resource_classes)
        except Conflict as error:
            raise Unavailable(f"The database cannot be adopted: {error}") from error
        LOG.info("The database of OpenStack Placement was adopted")
    migration.upgrade(url, revision)
    return outcome


def _is_stock(found: migration.FoundDatabase) -> bool:
    """Whether there is something to adopt, or to go on with."""
    if found.record is not None:
        return found.record.stage is adoption.AdoptionStage.ADOPTING
    return found.revision in adoption.REVISIONS
