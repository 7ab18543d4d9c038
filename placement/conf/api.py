"""``[api]``: how requests are authenticated."""

from oslo_config import cfg

GROUP = cfg.OptGroup("api", title="API", help="How the REST API is offered.")

OPTIONS: list[cfg.Opt] = [
    cfg.StrOpt(
        "auth_strategy",
        default="keystone",
        choices=[
            ("keystone", "Tokens are validated by the Identity service; see [keystone_authtoken]."),
            ("noauth2", "Tokens are believed. For development and tests only."),
        ],
        deprecated_group="DEFAULT",
        help="""
How requests are authenticated. With noauth2 nothing is checked: the token
'admin' is an administrator, any other token is read as 'user:project' or as
'user', and the request may name its roles and its project in headers.
""",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make the options of ``[api]`` known to ``conf``."""
    conf.register_opts(OPTIONS, group=GROUP.name)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """The options by group."""
    return [(GROUP, OPTIONS)]
