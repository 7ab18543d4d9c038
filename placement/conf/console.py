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
page needs what the policy asks for the same over REST. It works in any browser,
without scripts. With [api] auth_strategy = noauth2 it asks nobody who he is.
""",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make the options of ``[console]`` known to ``conf``."""
    conf.register_opts(OPTIONS, group=GROUP.name)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """The options by group."""
    return [(GROUP, OPTIONS)]
