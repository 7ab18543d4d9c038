"""Shows which rules and settings running guests would have with another configuration.

The running agent sends the values from which the settings of each guest follow, as JSON. ``config check``
resolves the settings again with the rules of the configuration files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from compute_agent.classification.resolution import ClassificationPolicy, resolve_settings
from compute_agent.classification.rules import GuestFacts
from compute_agent.model.guest import GuestIdentity
from compute_agent.model.guest_settings import SETTING_NAMES, SettingSource, read_setting, setting_text
from compute_agent.pipeline.guest_settings import ResolutionInput

# JSON has no sets, so these fields are sent as sorted lists.
_SETS = ("resource_classes", "traits")


def input_document(one: ResolutionInput) -> dict[str, Any]:
    """The values from which a guest's settings follow, and the settings in force, as JSON values."""
    guest = one.guest
    facts = asdict(one.facts)
    return {
        "uuid": guest.uuid,
        "name": guest.name,
        "vcpus": guest.settings.vcpus,
        "facts": {**facts, **{name: sorted(facts[name]) for name in _SETS}},
        "declared": _setting_texts(guest.declared),
        "declared_by": guest.declared_by.value,
        "manual": {source.value: _setting_texts(values) for source, values in one.manual.items()},
        "settings": {name: setting_text(getattr(guest.settings, name)) for name in SETTING_NAMES},
    }


def check_guests(
    policy: ClassificationPolicy, documents: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return a row for each guest: the rule that matches, the settings that would change, and problems.

    ``policy`` has the rules of the other configuration. ``documents`` are results of input_document().
    """
    return [_check_guest(policy, document) for document in documents]


def _check_guest(policy: ClassificationPolicy, document: Mapping[str, Any]) -> dict[str, Any]:
    facts = dict(document["facts"])
    facts |= {name: frozenset(facts[name]) for name in _SETS}
    found = resolve_settings(
        policy,
        GuestFacts(**{**facts, "identity": GuestIdentity(**facts["identity"])}),
        document["vcpus"],
        _values(document["declared"]),
        SettingSource(document["declared_by"]),
        {SettingSource(source): _values(texts) for source, texts in document["manual"].items()},
    )
    now = document["settings"]
    after = {name: setting_text(getattr(found.settings, name)) for name in SETTING_NAMES}
    return {
        "guest": document["uuid"],
        "name": document["name"],
        "rule": found.rule,
        "changes": [
            f"{name}: {now[name] or 'none'} -> {after[name] or 'none'} ({found.sources[name]})"
            for name in SETTING_NAMES
            if now[name] != after[name]
        ],
        "problems": list(found.problems),
    }


def _setting_texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: setting_text(value) for name, value in values.items()}


def _values(texts: Mapping[str, str]) -> dict[str, Any]:
    return {name: read_setting(name, text) for name, text in texts.items()}
