"""The policy rules of calendar feeds, in a module that tools import without the console."""

from typing import Final

from placement.policies.base import ADMIN_OR_PROJECT_READER_OR_SERVICE, ADMIN_OR_SERVICE, define_rule

SHOW_FEED: Final = "placement:ext:reservation_calendar:show"
MAKE_FEED: Final = "placement:ext:reservation_calendar:create"
REVOKE_FEED: Final = "placement:ext:reservation_calendar:delete"

_PATH: Final = "/ext/v1/reservation_calendar"
# an address gives the rights of a reader to each client that has it, so readers cannot make one
_ADMIN_OR_PROJECT_MEMBER_OR_SERVICE: Final = (
    f"{ADMIN_OR_SERVICE} or (role:member and project_id:%(project_id)s)"
)

RULES: Final = [
    define_rule(
        SHOW_FEED,
        "Show whether a project has a calendar address.",
        ("GET", _PATH),
        check=ADMIN_OR_PROJECT_READER_OR_SERVICE,
    ),
    define_rule(
        MAKE_FEED,
        "Make a secret address, at which the windows of a project can be read without a token.",
        ("POST", _PATH),
        check=_ADMIN_OR_PROJECT_MEMBER_OR_SERVICE,
    ),
    define_rule(
        REVOKE_FEED,
        "Revoke the calendar address of a project.",
        ("DELETE", _PATH),
        check=_ADMIN_OR_PROJECT_MEMBER_OR_SERVICE,
    ),
]
