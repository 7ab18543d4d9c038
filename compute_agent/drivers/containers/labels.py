"""Parses the settings of a guest in the labels of its container.

The module consists of pure functions. A container has the labels of ``podman run --label`` and the labels of
its image. An image can come from anywhere, but labels decide about CPUs of the host. So a label with the same
value as in the image counts as the image's label, and has no effect. All other labels come from users of the
engine's socket, and these users can become root anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from compute_agent.drivers.foreign.declared import (
    BadDeclarationError,
    DeclaredSettings,
    KeyNames,
    parse_declaration,
    read_wish,
)
from compute_agent.model.guest_settings import SETTING_NAMES
from compute_agent.model.messages import printable_text

PREFIX: Final = "compute-agent."
GUEST: Final = f"{PREFIX}guest"
"""The label of containers that are meant to be guests."""

KUBERNETES: Final = "io.kubernetes.pod.uid"
"""The label of containers that the kubelet manages."""

KEYS: Final[Mapping[str, str]] = {
    PREFIX + ("class" if name == "qos_class" else name.replace("_", "-")): name for name in SETTING_NAMES
}
"""The settings of guests by their labels, such as ``compute-agent.class`` for ``qos_class``."""

_KEYS: Final = KeyNames(f"{PREFIX}uuid", f"{PREFIX}vcpus", f"{PREFIX}memory", KEYS, "label")

_MAX_TEXT: Final = 1000


def trusted_labels(labels: Mapping[str, str], image_labels: Mapping[str, str]) -> Mapping[str, str]:
    """The labels that a user of the engine has set."""
    return {key: text for key, text in labels.items() if image_labels.get(key) != text}


def parse_labels(
    labels: Mapping[str, str], image_labels: Mapping[str, str], is_chosen: bool = False
) -> DeclaredSettings | None:
    """The settings in the labels of a container; None if the container is not meant to be a guest.

    :param labels: all labels of the container.
    :param is_chosen: whether an option of the agent names the container, so that it is a guest even without
        the label.
    :raises BadDeclarationError: the value of a label cannot be used, and the container cannot be a guest
        without it.
    """
    trusted = {
        key: text for key, text in trusted_labels(labels, image_labels).items() if key.startswith(PREFIX)
    }
    # If an option of the agent chooses the container, the label of the image has no effect.
    if not read_wish(GUEST, trusted.get(GUEST, "true" if is_chosen else labels.get(GUEST, "false"))):
        return None
    if GUEST not in trusted and not is_chosen:
        raise BadDeclarationError(
            f"{GUEST} is a label of its image, which is not trusted, or the image is gone"
        )
    if long := sorted(key for key, text in trusted.items() if len(key) + len(text) > _MAX_TEXT):
        raise BadDeclarationError(
            f"label {printable_text(long[0])[:100]} is longer than {_MAX_TEXT} characters"
        )
    found = parse_declaration({key: text for key, text in trusted.items() if key != GUEST}, _KEYS)
    ignored = sorted(key for key in labels.keys() - trusted.keys() if key.startswith(PREFIX))
    told = [f"label {printable_text(key)[:100]} has no effect: it is of the image" for key in ignored[:20]]
    return replace(found, problems=(*found.problems, *told))
