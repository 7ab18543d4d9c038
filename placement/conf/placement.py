"""The section ``[placement]``: allocations, candidates, resource classes and the model file."""

from typing import Final

from oslo_config import cfg, types

GROUP: Final = cfg.OptGroup(
    "placement", title="Placement", help="Allocations, candidates and resource classes."
)

MISSING_CONSUMER: Final = "00000000-0000-0000-0000-000000000000"
"""The project and user of consumers that have none, as in OpenStack Placement."""

OPTIONS: list[cfg.Opt] = [
    cfg.BoolOpt(
        "randomize_allocation_candidates",
        default=False,
        help="""
Whether a limited list of allocation candidates is a random sample of all of
them. If not, the same request in the same state of the cloud gets the same
candidates in the same order. With small limits this packs instances onto few
hosts.
""",
    ),
    cfg.StrOpt(
        "incomplete_consumer_project_id",
        default=MISSING_CONSUMER,
        help="""
The project of consumers that clients made before microversion 1.8. Such
requests did not name a project.
""",
    ),
    cfg.StrOpt(
        "incomplete_consumer_user_id",
        default=MISSING_CONSUMER,
        help="""
The user of consumers that clients made before microversion 1.8. Such requests
did not name a user.
""",
    ),
    cfg.IntOpt(
        "allocation_conflict_retry_count",
        # the same default as in OpenStack Placement
        default=10,
        min=0,
        help="""
Number of times that the server itself retries to write allocations after a
concurrent change of the same resource provider. After these attempts the
client gets a conflict.
""",
    ),
    cfg.IntOpt(
        "max_allocation_candidates",
        # the same default as in OpenStack Placement
        default=-1,
        min=-1,
        help="""
Maximum number of allocation candidates that the server generates for one request; -1 for no bound. The
maximum applies before the limit of the request. So with randomize_allocation_candidates the sample is drawn
from at most this number.
""",
    ),
    cfg.StrOpt(
        "allocation_candidates_generation_strategy",
        default="depth-first",
        choices=[
            ("depth-first", "All candidates of one root provider, then those of the next."),
            ("breadth-first", "One candidate of each root provider in turn."),
        ],
        help="""
Order in which candidates are generated. The order decides which candidates are in the answer if
max_allocation_candidates or the limit of the request ends the list. If a root has 17 or more candidates,
some of them only exchange equal providers or groups of another candidate. These come last, after the other
candidates of all roots.
""",
    ),
    cfg.StrOpt(
        "candidate_order",
        default="topology",
        choices=[
            (
                "topology",
                "Candidates that cross fewest children of the root, such as NUMA nodes, come first.",
            ),
            (
                "id",
                "Candidates come as they are found. Those that only exchange equal providers of"
                " another candidate come last.",
            ),
        ],
        help="""
Order of the allocation candidates of one root provider. Nova takes the first
one of the host that it has chosen. The option changes neither the set of
candidates nor the order of roots. With randomize_allocation_candidates
everything is in random order.
""",
    ),
    cfg.ListOpt(
        "additional_resource_classes",
        default=["LLC", "MBA"],
        # names that begin with CUSTOM_ belong to clients, which create and delete them through the API
        item_type=types.String(max_length=255, regex=r"^(?!CUSTOM_)[A-Z][A-Z0-9_]*$"),
        help="""
Resource classes that exist from the start beside the standard ones: LLC counts last-level cache, MBA memory
bandwidth. With an empty list only the standard classes exist. Names have capital letters, digits and
underscores, and begin with a letter. Names do not begin with CUSTOM_, the prefix of classes that clients
create.
""",
    ),
    cfg.StrOpt(
        "model_file",
        help="""
Experimental. File with a copy of the resource providers that the service has in memory. A starting worker
then reads only later changes from the database. With a million resource providers this takes seconds
instead of half a minute. All workers of a machine use one file. The folder of the file has to be writable
for the service alone, such as /var/lib/placement/model. One of the workers writes the file every five
minutes if there were changes.

A worker compares the file with the database before it uses the file. A file
that is damaged, or of another database, is removed with a line in the log. A
file from before a restore of the database is removed, too. Removing the file
does no harm. Without this option there is no file.
""",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of ``[placement]``."""
    conf.register_opts(OPTIONS, group=GROUP.name)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options by group."""
    return [(GROUP, OPTIONS)]
