"""The options in ``[reservations]``: limits on the reservations of projects."""

from typing import Final

from oslo_config import cfg, types

GROUP: Final = cfg.OptGroup(
    "reservations",
    title="Reservations",
    help="Limits on the reservations of projects. By default there are no limits.",
)

_AMOUNTS: Final = types.Dict(value_type=types.Integer(min=0))

OPTIONS: list[cfg.Opt] = [
    cfg.IntOpt(
        "max_duration",
        default=-1,
        min=-1,
        help="""
Experimental. Maximum number of seconds from the start of a reservation to its
end; -1 for no maximum. For a reservation without a start, the seconds count
from the time at which it is made or extended.

""",
    ),
    cfg.IntOpt(
        "max_ahead",
        default=-1,
        min=-1,
        help="""
Experimental. Maximum number of seconds from the request for a reservation to
the start of the reservation; -1 for the general maximum of 366 days.

""",
    ),
    cfg.IntOpt(
        "max_project_reservations",
        default=-1,
        min=-1,
        help="""
Experimental. Maximum number of pending and active reservations of a project;
-1 for no maximum. A resource provider can have at most 1000 windows of a
resource class. Without this maximum, many short reservations of one project
can use up these windows.

""",
    ),
    cfg.Opt(
        "max_project_amounts",
        default={},
        type=_AMOUNTS,
        help="""
Experimental. Maximum amounts of resource classes that a project can hold at the
same time, in reservations and in claims with an end time (ends_at). The value
is a list of maxima, such as PGPU:8,VCPU:256, which apply to each project. A
maximum for one project begins with the id of the project, such as
5f2c/PGPU:16. It replaces the general maximum of this class for the project. A
resource class that is not in the list has no maximum.

""",
    ),
    cfg.Opt(
        "max_project_hours",
        default={},
        type=_AMOUNTS,
        help="""
Experimental. Maximum numbers of resource hours (amount multiplied by hours) of
resource classes that a project can reserve within any period of hours_period
seconds. Claims with an end time (ends_at) count as reservations. The value has
the same format as max_project_amounts. Hours in the past do not count.

""",
    ),
    cfg.IntOpt(
        "hours_period",
        default=30 * 86_400,
        min=1,
        help="""
Experimental. Length, in seconds, of the periods to which max_project_hours
applies.

""",
    ),
]


def limited_classes(conf: cfg.ConfigOpts) -> set[str]:
    """Return the resource classes with limits, without the additional classes, which the service creates."""
    group = conf.reservations
    keys = (*group.max_project_amounts, *group.max_project_hours)
    # a key has the form CLASS or PROJECT/CLASS
    return {key.rpartition("/")[2] for key in keys}.difference(conf.placement.additional_resource_classes)
