"""``[console]``: pages for people, in a browser."""

from typing import Final

from oslo_config import cfg

GROUP: Final = cfg.OptGroup(
    "console", title="Console", help="Pages for people, in a browser, below /console."
)

OPTIONS: list[cfg.Opt] = [
    cfg.BoolOpt(
        "enabled",
        default=False,
        help="""
Whether the service has a console at /console: pages that show hosts, what is
free, used, stranded and disabled there, and who holds it. Whoever looks at a
page needs what the policy asks for the same over REST. It works in any
browser, without scripts.

Visitors sign in with a password or an application credential, which the
Identity service of [keystone_authtoken] checks; that needs the Python package
cryptography, which the extra console of the wheel brings, and HTTPS in front.
With [api] auth_strategy = noauth2 it asks nobody who he is.
""",
    ),
    cfg.IntOpt(
        "session_lifetime",
        default=8 * 3600,
        min=60,
        help="""
After how many seconds a visitor of the console has to sign in again. It is
earlier where tokens of the Identity service expire before: see its option
[token] expiration.
""",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make the options of ``[console]`` known to ``conf``."""
    conf.register_opts(OPTIONS, group=GROUP.name)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """The options by group."""
    return [(GROUP, OPTIONS)]
