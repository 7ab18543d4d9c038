"""The options in ``[reservations]``: limits on the reservations of projects."""

from typing import Final

from oslo_config import cfg, types

GROUP: Final = cfg.OptGroup(
    "reservations",
    title="Reservations",
    help="Limits on reservations of projects. By default no limit applies.",
)

_AMOUNTS: Final = types.Dict(value_type=types.Integer(min=0))

OPTIONS: list[cfg.Opt] = [
    cfg.IntOpt(
        "max_duration",
        default=-1,
        min=-1,
        help="""
Experimental. Maximum number of seconds from the start of a reservation to its
end; -1 for no maximum. A reservation without a start begins when it is made
or extended.

""",
    ),
    cfg.IntOpt(
        "max_ahead",
        default=-1,
        min=-1,
        help="""
Experimental. Maximum number of seconds from now to the start of a
reservation; -1 for no maximum other than 366 days.

""",
    ),
    cfg.IntOpt(
        "max_project_reservations",
        default=-1,
        min=-1,
        help="""
Experimental. Maximum number of pending and active reservations of a project;
-1 for no maximum. Many short reservations of one project can use up the
1000 windows that a provider can have of a resource class.

""",
    ),
    cfg.Opt(
        "max_project_amounts",
        default={},
        type=_AMOUNTS,
        help="""
Experimental. Maximum amount of each resource class, such as PGPU:8,VCPU:256,
that a project may hold at any instant in reservations and in claims with an end
time (ends_at). A key CLASS applies to each project. A key PROJECT/CLASS, such
as 5f2c/PGPU:16, applies only to this project, and replaces the key CLASS there.
A resource class without a key has no maximum.

""",
    ),
    cfg.Opt(
        "max_project_hours",
        default={},
        type=_AMOUNTS,
        help="""
Experimental. Maximum number of resource hours (amount multiplied by hours) that
a project may reserve of each resource class within any period of hours_period
seconds. Claims with an end time (ends_at) count as reservations. Keys have the
format of max_project_amounts. Hours in the past do not count.

""",
    ),
    cfg.IntOpt(
        "hours_period",
        default=30 * 86_400,
        min=1,
        help="""
Experimental. Length of each period to which max_project_hours applies, in
seconds.

""",
    ),
]


def limited_classes(conf: cfg.ConfigOpts) -> set[str]:
    """Return the resource classes with limits, except additional classes, which the service creates."""
    group = conf.reservations
    keys = (*group.max_project_amounts, *group.max_project_hours)
    # a key is a class, or a project and a class
    return {key.rpartition("/")[2] for key in keys}.difference(conf.placement.additional_resource_classes)
