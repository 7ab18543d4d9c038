"""Sections ``[podman]`` and ``[docker]``: the engines of this host, for guests that are containers."""

from typing import Final

from oslo_config import cfg

_SOCKETS: Final = {"podman": "/run/podman/podman.sock", "docker": "/var/run/docker.sock"}

ENGINE_OPTS: Final = {
    name: [
        cfg.StrOpt(
            "socket",
            default=path,
            help=f"UNIX socket of {name.capitalize()}, which root or the user of the agent has to run. Only"
            f" the driver {name} of [guests] drivers uses it.",
        ),
        cfg.ListOpt(
            "guest_names",
            default=[],
            help="Names of containers that are guests without the label compute-agent.guest: a list of texts"
            " or patterns (*, ?, [abc]). The label compute-agent.guest=false overrides"
            " this list, unless the label is from the container's image.",
        ),
    ]
    for name, path in _SOCKETS.items()
}


ENGINE_OPTS["podman"].append(
    cfg.StrOpt(
        "pods",
        default="container",
        choices=[
            ("container", "each container of a pod is a guest by itself"),
            (
                "pod",
                "a pod with the label compute-agent.guest=true, or with a name of guest_names, is one guest;"
                " containers of other pods are guests by themselves",
            ),
        ],
        help="Whether each container of a pod is a guest, or the pod as a whole.",
    )
)

SECTIONS: Final = ENGINE_OPTS
