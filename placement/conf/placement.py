"""The options in ``[placement]``: allocations, candidates, resource classes and the model file."""

from typing import Final

from oslo_config import cfg, types

GROUP: Final = cfg.OptGroup(
    "placement", title="Placement", help="Allocations, candidates and resource classes."
)

MISSING_CONSUMER: Final = "00000000-0000-0000-0000-000000000000"
"""The project and the user of consumers that have none; the ids are those of OpenStack Placement."""

OPTIONS: list[cfg.Opt] = [
    cfg.BoolOpt(
        "randomize_allocation_candidates",
        default=False,
        help="""
Whether a limited list of allocation candidates is a random sample of all
candidates. If false, equal requests get equal candidates in the same
order while the cloud does not change, unless a search reaches
[api] candidates_deadline. With a small limit, this order
packs instances onto few hosts.

""",
    ),
    cfg.StrOpt(
        "incomplete_consumer_project_id",
        default=MISSING_CONSUMER,
        help="""
The project of consumers that are created with a microversion before 1.8.
Requests of these microversions do not name a project.

""",
    ),
    cfg.StrOpt(
        "incomplete_consumer_user_id",
        default=MISSING_CONSUMER,
        help="""
The user of consumers that are created with a microversion before 1.8.
Requests of these microversions do not name a user.

""",
    ),
    cfg.IntOpt(
        "allocation_conflict_retry_count",
        # the same default as in OpenStack Placement
        default=10,
        min=0,
        help="""
Number of times that the service retries a write of allocations after another
client has changed the same resource provider. If all attempts fail, the
client gets the answer 409 (conflict).

""",
    ),
    cfg.IntOpt(
        "max_allocation_candidates",
        # the same default as in OpenStack Placement
        default=-1,
        min=-1,
        help="""
Maximum number of allocation candidates that the service generates for one
request; -1 for no maximum. If the request has a lower limit, that limit
applies. With randomize_allocation_candidates, the service draws a random
sample of this size from all candidates.

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
Order in which candidates are generated. The order matters if
max_allocation_candidates or the limit of the request cuts the list. Some
candidates of a root are equivalent: they differ only by an exchange of equal
providers, or of equal groups of the request. If a root has 17 or more
candidates, the service first generates only one of several equivalent
candidates. The equivalent candidates that it left out come last, after the
candidates of all roots.

""",
    ),
    cfg.StrOpt(
        "candidate_order",
        default="topology",
        choices=[
            (
                "topology",
                "Candidates below the fewest children of the root, such as NUMA nodes, come first.",
            ),
            (
                "id",
                "Candidates stay in the order of the search. Candidates that differ from another one only by"
                " an exchange of equal providers come last.",
            ),
        ],
        help="""
Order of the allocation candidates of one root provider. Nova chooses a host,
and then takes the first candidate of this host. The option does not change
the order of roots, and removes no candidates. With
randomize_allocation_candidates all candidates are in random order.

""",
    ),
    cfg.ListOpt(
        "additional_resource_classes",
        default=["LLC", "MBA"],
        # names that begin with CUSTOM_ belong to clients, which create and delete them through the API
        item_type=types.String(max_length=255, regex=r"^(?!CUSTOM_)[A-Z][A-Z0-9_]*$"),
        help="""
Resource classes that the service has in addition to the standard classes of
OpenStack. LLC is last-level cache, and MBA is memory bandwidth. If you remove
a class from the list, a worker deletes the class at its next start, unless
an inventory or an allocation uses it. Names have capital letters, digits and
underscores, and begin with a letter. Names do not begin with CUSTOM_, the
prefix of classes that clients create.

""",
    ),
    cfg.StrOpt(
        "model_file",
        help="""
Experimental. File with a copy of the resource providers that a worker has in
memory. A worker reads this file when it starts, and then reads only the
later changes from the database. With a million resource providers, the start
takes seconds instead of half a minute. All workers of a machine use one
file. The folder of the file has to be writable for the service alone, such
as /var/lib/placement/model. One of the workers writes the file every five
minutes if there were changes.

A worker compares the file with the database before it uses the file. If the
file is damaged, belongs to another database, or was written before a restore
of the database, the worker removes the file and logs a line. An operator may
remove the file at any time. Without this option no file is written.

""",
    ),
]
