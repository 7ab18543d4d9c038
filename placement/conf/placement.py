"""``[placement]``: how allocations and candidates are treated."""

from typing import Final

from oslo_config import cfg, types

GROUP: Final = cfg.OptGroup(
    "placement", title="Placement", help="How allocations and candidates are treated."
)

MISSING_CONSUMER: Final = "00000000-0000-0000-0000-000000000000"

OPTIONS: list[cfg.Opt] = [
    cfg.BoolOpt(
        "randomize_allocation_candidates",
        default=False,
        help="""
Whether a limited list of allocation candidates is a random sample of all of
them. If not, the same request in the same state of the cloud is answered with the same
candidates in the same order, which packs instances onto few hosts when limits
are small.
""",
    ),
    cfg.StrOpt(
        "incomplete_consumer_project_id",
        default=MISSING_CONSUMER,
        help="""
The project of consumers that were made by clients before microversion 1.8,
which did not name one.
""",
    ),
    cfg.StrOpt(
        "incomplete_consumer_user_id",
        default=MISSING_CONSUMER,
        help="""
The user of consumers that were made by clients before microversion 1.8, which
did not name one.
""",
    ),
    cfg.IntOpt(
        "allocation_conflict_retry_count",
        default=10,
        min=0,
        help="""
How often the server itself retries to write allocations that met a concurrent
change of the same resource provider, before the client is told of the
conflict.
""",
    ),
    cfg.IntOpt(
        "max_allocation_candidates",
        default=-1,
        min=-1,
        help="""
The most allocation candidates that one request may make the server generate;
-1 for no bound. It bounds the work before the limit of the request is
applied, so with randomize_allocation_candidates the sample is drawn from that
many.
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
In which order candidates are generated, and so which are answered when
max_allocation_candidates or the limit of the request cuts the list.
""",
    ),
    cfg.StrOpt(
        "candidate_order",
        default="topology",
        choices=[
            ("topology", "Those first that cross fewest children of the root, such as NUMA nodes."),
            ("id", "As they are found, by the ids of their providers."),
        ],
        help="""
In which order the allocation candidates of one root provider come. Nova takes
the first one of the host that it has chosen. Which candidates are answered, and
in which order roots come, does not depend on it; with
randomize_allocation_candidates all is in random order.
""",
    ),
    cfg.ListOpt(
        "additional_resource_classes",
        default=["LLC", "MBA"],
        item_type=types.String(max_length=255, regex=r"^(?!CUSTOM_)[A-Z][A-Z0-9_]*$"),
        help="""
Resource classes that exist from the start beside the standard ones: LLC
counts last-level cache, MBA memory bandwidth. Empty for the standard set
alone. Names are of capital letters, digits and underscores, begin with a
letter and not with CUSTOM_, which is for classes that clients create.
""",
    ),
    cfg.StrOpt(
        "model_file",
        help="""
A file in which the service keeps a copy of the resource providers that it has
in memory, so that a worker that starts reads from the database only what has
changed since: seconds instead of half a minute with a million resource
providers. One file for all workers of a machine, in a folder that only the
service may write, such as /var/lib/placement/model. One of the workers writes
it every five minutes, if there were changes.

It is compared with the database before it is used, and thrown away, with a line
in the log, where it is damaged, or of another database or of one that has been
restored from a backup since. Removing it does no harm. Without this option
there is none.
""",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make the options of ``[placement]`` known to ``conf``."""
    conf.register_opts(OPTIONS, group=GROUP.name)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """The options by group."""
    return [(GROUP, OPTIONS)]
