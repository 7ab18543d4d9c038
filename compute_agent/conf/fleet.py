"""Where the host has settings from that it shares with others."""

from typing import Any, Final

from oslo_config import cfg

GROUP = "fleet"

GUEST: Final = "guest:"
"""What the names of sections of single guests begin with, which revisions have; the uuid follows."""

OPTS: Final = [
    cfg.StrOpt(
        "group",
        regex=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,63})?$",
        help="Group of hosts that this one belongs to. It then has settings from GROUP.conf of the source,"
        " below those of its own files, which overrule them. Unset, it has its own only. Needs the Python"
        " package cryptography, which the extra fleet of the wheel brings.",
    ),
    cfg.StrOpt(
        "source",
        help="Folder (absolute path) or address (https://HOST/FOLDER) that has the file of the group.",
    ),
    cfg.ListOpt(
        "public_keys",
        default=[],
        help="Keys of those whose signature counts, as `compute-agent fleet key` prints them. Several are for"
        " the time in which one takes the place of another.",
    ),
    cfg.StrOpt(
        "cafile",
        help="Certificates (PEM) that the certificate of an https source has to follow from; by default those"
        " that the system trusts.",
    ),
    cfg.StrOpt(
        "certfile",
        help="Certificate (PEM, with those that it follows from) that the agent shows to an https source that"
        " asks for one. Needs keyfile.",
    ),
    cfg.StrOpt(
        "keyfile",
        help="The key of certfile (PEM, without a password), a file of root or the agent's user that others"
        " can neither read nor change.",
    ),
    cfg.IntOpt(
        "interval",
        default=60,
        min=1,
        help="Seconds from one look at the source to the next.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make section [fleet] known to ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    return [(GROUP, OPTS)]
