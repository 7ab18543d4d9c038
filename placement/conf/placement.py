"""The options in ``[placement]``: allocations, candidates, resource classes and the model file."""

from typing import Final

from oslo_config import cfg, types

GROUP: Final = cfg.OptGroup(
    "placement", title="Placement", help="Allocations, candidates and resource classes."
)

MISSING_CONSUMER: Final = "00000000-0000-0000-0000-000000000000"
"""The id of the project and of the user for consumers without them, as in OpenStack Placement."""

OPTIONS: list[cfg.Opt] = [
    cfg.BoolOpt(
        "randomize_allocation_candidates",
        default=False,
        help="""
Whether a limited list of allocation candidates is a random sample of all
candidates. If false, equal requests get equal candidates in the same order as
long as the cloud does not change and no search reaches [api]
candidates_deadline. If requests have a small limit, this order packs instances
onto few hosts.

""",
    ),
    cfg.StrOpt(
        "incomplete_consumer_project_id",
        default=MISSING_CONSUMER,
        help="""
The project of consumers that are created with a microversion before 1.8.
Requests with these microversions contain no project.

""",
    ),
    cfg.StrOpt(
        "incomplete_consumer_user_id",
        default=MISSING_CONSUMER,
        help="""
The user of consumers that are created with a microversion before 1.8.
Requests with these microversions contain no user.

""",
    ),
    cfg.IntOpt(
        "allocation_conflict_retry_count",
        # the same default as in OpenStack Placement
        default=10,
        min=0,
        help="""
Maximum number of times that the service tries a write of allocations again,
if it fails because another client has changed the same resource provider. If
all attempts fail, the client gets the answer 409 (conflict).

""",
    ),
    cfg.IntOpt(
        "max_allocation_candidates",
        # the same default as in OpenStack Placement
        default=-1,
        min=-1,
        help="""
Maximum number of allocation candidates that the service generates for one
request; -1 for no maximum. If the request has a lower limit, the limit of the
request applies. With randomize_allocation_candidates, the candidates are a
random sample of this size from all candidates.

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
candidates of a root provider are equivalent: they differ only by an exchange
of equal providers, or of equal groups of the request. If a root provider has
17 or more candidates, the service first generates only one of several
equivalent candidates. The other equivalent candidates come last, after the
candidates of all root providers.

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
the order of root providers, and removes no candidates. With
randomize_allocation_candidates, all candidates are in random order, and this
option has no effect.

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
underscores, and begin with a letter. Names must not begin with CUSTOM_, which
is the prefix of classes that clients create.

""",
    ),
    cfg.StrOpt(
        "model_file",
        help="""
Experimental. Path of a file with a copy of the resource providers that workers
have in memory, such as /var/lib/placement/model. A worker reads this file when
it starts, and then reads only the later changes from the database. With a
million resource providers, the start takes seconds instead of half a minute.
All workers of a machine use the same file. Only the user of the service must
be able to write in the folder of the file. Every five minutes, one of the
workers writes the file if there were changes. Workers that placement-api
starts at the same time share the memory for the content of the file, except
the parts that change later.

A worker compares the file with the database before it uses the file. If the
file is damaged, belongs to another database, or was written before a restore
of the database, the worker removes the file and logs a line. An operator can
remove the file at any time. Without this option no file is written.

""",
    ),
]
