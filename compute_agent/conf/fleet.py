"""Section ``[fleet]``: the source of settings that the host shares with others."""

from typing import Any, Final

from oslo_config import cfg

GROUP = "fleet"

GUEST: Final = "guest:"
"""Prefix of the sections of single guests in revisions; the uuid follows."""

OPTS: Final = [
    cfg.StrOpt(
        "group",
        regex=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,63})?$",
        help="Group of hosts that this one belongs to. Settings then come from GROUP.conf of the source, and"
        " the host's own files override them. Default: only its own files. Needs the Python package"
        " cryptography, which the extra fleet of the wheel brings.",
    ),
    cfg.StrOpt(
        "source",
        help="Folder (absolute path) or address (https://HOST/FOLDER) with the file of the group.",
    ),
    cfg.ListOpt(
        "public_keys",
        default=[],
        help="Public keys of accepted signatures, as `compute-agent fleet key` prints them. Name two while"
        " one key replaces another.",
    ),
    cfg.StrOpt(
        "cafile",
        help="Certificates (PEM) of authorities for the certificate of an https source. Default: those that"
        " the system trusts.",
    ),
    cfg.StrOpt(
        "certfile",
        help="Certificate (PEM, with its chain) that the agent presents to an https source which asks for"
        " one. Needs keyfile.",
    ),
    cfg.StrOpt(
        "keyfile",
        help="Key of certfile (PEM, without a password). The file belongs to root or the agent's user, and"
        " other users can neither read nor change it.",
    ),
    cfg.IntOpt(
        "interval",
        default=60,
        min=1,
        help="Seconds between two looks at the source.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make section [fleet] known to ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    return [(GROUP, OPTS)]
