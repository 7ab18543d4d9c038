"""Folders of the agent: the root of the host's files, the state that survives restarts, and the locks."""

from typing import Final

from oslo_config import cfg

DEFAULT_OPTS: Final = [
    cfg.StrOpt(
        "state_path",
        default="/var/lib/compute-agent",
        help="Folder of the agent's state: the uuid of its provider, the guests that it placed, and"
        " measurements. The inventory of DISK_GB is the size of the file system of this folder. The folder"
        " must belong to the agent's user or to root, and must not be writable for other users.",
    ),
    cfg.StrOpt(
        "lock_path",
        help="Folder of the lock files that prevent two agents from managing the same guests. All agents of a"
        " host must use the same folder. Default: /run/compute-agent. If the agent does not run as root, the"
        " default is $XDG_RUNTIME_DIR/compute-agent, or /tmp/compute-agent-UID without that variable.",
    ),
]

HOST_OPTS: Final = [
    cfg.StrOpt(
        "root",
        default="/",
        help="Folder below which the agent reads /sys and /proc. If the folder is not /, the agent reads"
        " copies of these files, such as files from another host.",
    ),
]

SECTIONS: Final = {"DEFAULT": DEFAULT_OPTS, "host": HOST_OPTS}
