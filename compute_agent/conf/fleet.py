"""Section ``[fleet]``: the source of settings that the hosts of a group share."""

from typing import Final

from oslo_config import cfg

GUEST: Final = "guest:"
"""Prefix of the sections for single guests in a revision of fleet settings. The uuid of the guest follows."""

OPTS: Final = [
    cfg.StrOpt(
        "group",
        regex=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,63})?$",
        help="Group of hosts to which this host belongs. The agent then reads settings from the file"
        " GROUP.conf in the folder source, and the host's own files override these settings. If the option is"
        " not set, the agent reads only the host's own files. The option needs the Python package"
        " cryptography. To install it, give pip the name of the agent's wheel followed by [fleet].",
    ),
    cfg.StrOpt(
        "source",
        help="Folder that contains the file GROUP.conf of the group: an absolute path, or an address"
        " (https://HOST/FOLDER).",
    ),
    cfg.ListOpt(
        "public_keys",
        default=[],
        help="Public keys that `compute-agent fleet key` has printed. The agent accepts settings with a"
        " signature of any of these keys. To replace a key, list the old and the new key until all"
        " settings are signed with the new key.",
    ),
    cfg.StrOpt(
        "cafile",
        help="File with the certificates (PEM) of the authorities that the agent trusts for an https source."
        " Default: the authorities that the system trusts.",
    ),
    cfg.StrOpt(
        "certfile",
        help="File with the client certificate (PEM, with its chain) that the agent presents to an https"
        " source. The option needs keyfile.",
    ),
    cfg.StrOpt(
        "keyfile",
        help="File with the private key of certfile (PEM, without a password). The file must belong to root"
        " or the agent's user, and other users must not be able to read or change it.",
    ),
    cfg.IntOpt(
        "interval",
        default=60,
        min=1,
        help="Seconds between two checks of the source for a new revision.",
    ),
]

SECTIONS: Final = {"fleet": OPTS}
