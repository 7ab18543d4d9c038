"""Settings of a guest, each from its strongest source, and problems with values of the sources.

A flavor is an operator's, and its extra specs ``compute_agent:SETTING`` count where ``[guests]
flavor_settings`` names the setting. An image is a tenant's, and of its properties only those count that
``[guests] image_settings`` names. Where flavor and image
have different thread policies, Nova's own rule holds (``get_cpu_thread_policy_constraint`` of
``nova.virt.hardware``). The image counts where the flavor says nothing. A flavor with another policy than
``prefer`` excludes an image that differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from oslo_config import cfg

from compute_agent.classes.blockio_classes import parse_blockio_classes
from compute_agent.classes.cpu_classes import parse_cpu_classes
from compute_agent.classes.guest_classes import parse_classes
from compute_agent.classification.rules import GuestFacts, GuestRule, KnownClasses, first_match, parse_rules
from compute_agent.conf.guests import FLAVOR_SETTINGS, IMAGE_SETTINGS
from compute_agent.model.guest_settings import (
    DEFAULT_VALUES,
    LATENCY_SENSITIVE,
    SETTING_NAMES,
    GuestSettings,
    SettingSource,
    ThreadPolicy,
    read_setting,
    setting_text,
)
from compute_agent.model.messages import ConfigError, printable_text

NAMESPACE: Final = "compute_agent:"
"""Begins the extra specs of flavors that are settings."""

_IMAGE_NAMESPACE: Final = "compute_agent_"

_NOVA_SPECS: Final = {
    "hw:cpu_thread_policy": "thread_policy",
    "hw:emulator_threads_policy": "emulator_policy",
}
_NOVA_PROPERTIES: Final = {
    "hw_cpu_thread_policy": "thread_policy",
    "hw_emulator_threads_policy": "emulator_policy",
}
_POSITION_SPECS: Final = {
    "thread_policy": "hw:cpu_thread_policy",
    "emulator_policy": "hw:emulator_threads_policy",
    "spread": "hw:cpu_thread_policy",
}
"""For each setting about a guest's CPUs: the extra spec that makes Nova choose the CPUs."""

_MAX_SHOWN: Final = 80
"""Characters of a value that a problem shows."""

_MAX_PROBLEMS: Final = 20
"""Limit of the problems of one guest: the metadata of a domain may have been written by a tenant's tool."""

Values = Mapping[str, Any]
"""Values by setting."""

ManualValues = Mapping[SettingSource, Values]
"""Settings by hand and by the fleet."""


@dataclass(frozen=True, slots=True)
class ClassificationPolicy:
    """The configuration of classification. The defaults are a host without rules.

    ``known`` None: names of classes are not checked. ``follows``: another program pins guests, and settings
    about positions have no effect.
    """

    rules: tuple[GuestRule, ...] = ()
    default_qos_class: str = LATENCY_SENSITIVE
    flavor_settings: frozenset[str] = frozenset(FLAVOR_SETTINGS)
    image_settings: frozenset[str] = frozenset(IMAGE_SETTINGS)
    known: KnownClasses | None = None
    follows: bool = False


NO_CLASSIFICATION: Final = ClassificationPolicy()
"""A host without rules, where each class counts as known."""


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """The settings of a guest, the source of each, problems in sentences, and the name of its rule."""

    settings: GuestSettings
    sources: Mapping[str, str]
    problems: tuple[str, ...] = ()
    rule: str = ""


@dataclass(slots=True)
class _SourceFindings:
    """Collects problems while the sources are read."""

    known: KnownClasses | None
    problems: list[str] = field(default_factory=list)

    def read_value(self, where: str, setting: str, text: str) -> Values:
        """The value of a setting from its text; a text that cannot be used gives none, and is a problem."""
        try:
            value = read_setting(setting, text)
        except ValueError as error:
            self.problems.append(f"{where} = {printable_text(text[:_MAX_SHOWN])!r} cannot be used ({error})")
            return {}
        return self.check_class(where, setting, value)

    def check_class(self, where: str, setting: str, value: Any) -> Values:
        """The value, by its setting, and a problem if it names an unknown class."""
        missing = "" if self.known is None else self.known.missing_class(setting, value)
        if not missing:
            return {setting: value}
        if setting == "qos_class":
            # A guest may outlive a section: it is protected rather than taken for another class.
            self.problems.append(f"{where}: {missing}; until then the agent does not act on the guest")
            return {setting: value}
        if setting == "blockio_class":
            return {setting: value}  # its controller says so of each guest
        self.problems.append(f"{where}: {missing}")
        return {}


def resolve_settings(
    policy: ClassificationPolicy,
    facts: GuestFacts,
    vcpus: int = 1,
    declared: Values | None = None,
    declared_by: SettingSource = SettingSource.DOMAIN,
    manual: ManualValues | None = None,
) -> ResolvedSettings:
    """The settings of a guest of these facts.

    :param declared: settings of the guest that its driver knows; ``declared_by`` is their source.
    """
    found, manual = _SourceFindings(policy.known), manual or {}
    rule = first_match(policy.rules, facts)
    layers: list[tuple[str, Values]] = [
        *(
            (str(source), _check_classes(found, str(source), manual.get(source, {})))
            for source in (SettingSource.BY_HAND, SettingSource.FLEET)
        ),
        (str(declared_by), _check_classes(found, str(declared_by), declared or {})),
        (str(SettingSource.FLAVOR), _flavor_values(found, policy, facts)),
        (str(SettingSource.IMAGE), _image_values(found, policy, facts)),
        ("" if rule is None else f"{SettingSource.RULE} {rule.name}", {} if rule is None else rule.settings),
        (str(SettingSource.DEFAULT), {**DEFAULT_VALUES, "qos_class": policy.default_qos_class}),
    ]
    values, sources = {}, {}
    for setting in SETTING_NAMES:
        sources[setting], values[setting] = next(
            (source, layer[setting]) for source, layer in layers if setting in layer
        )
    settings = GuestSettings(vcpus=vcpus, **values)
    if policy.follows and not settings.preserve:
        found.problems += _position_problems(settings, sources)
    problems = tuple(found.problems[:_MAX_PROBLEMS])
    return ResolvedSettings(settings, sources, problems, "" if rule is None else rule.name)


def _position_problems(settings: GuestSettings, sources: Mapping[str, str]) -> Iterator[str]:
    """Sentences about settings of positions that the program which pins the guest does not know."""
    nova_reads = (SettingSource.FLAVOR, SettingSource.IMAGE)
    for setting, spec in _POSITION_SPECS.items():
        is_known = setting != "spread" and sources[setting] in nova_reads
        if setting in settings.chosen_values and not is_known:
            yield (
                f"{setting} = {setting_text(getattr(settings, setting))} ({sources[setting]}) has no effect,"
                f" as [policy] name = follow leaves the choice of CPUs to Nova: set {spec} in the flavor"
            )


def _check_classes(found: _SourceFindings, source: str, values: Values) -> Values:
    checked: dict[str, Any] = {}
    for setting, value in values.items():
        checked |= found.check_class(f"{setting} ({source})", setting, value)
    return checked


def _flavor_values(found: _SourceFindings, policy: ClassificationPolicy, facts: GuestFacts) -> Values:
    values: dict[str, Any] = {}
    for key, text in facts.identity.extra_specs.items():
        if key in _NOVA_SPECS:
            # Our own extra spec of the same setting is the more special one.
            values = {**found.read_value(f"flavor: {key}", _NOVA_SPECS[key], text), **values}
        elif key.startswith(NAMESPACE):
            setting, shown = key.removeprefix(NAMESPACE), printable_text(key[:_MAX_SHOWN])
            if setting not in SETTING_NAMES:
                found.problems.append(f"flavor: there is no setting {shown}")
            elif setting not in policy.flavor_settings:
                found.problems.append(
                    f"flavor: {shown} has no effect, because [guests] flavor_settings does not list it"
                )
            else:
                values |= found.read_value(f"flavor: {shown}", setting, text)
    return values


def _image_values(found: _SourceFindings, policy: ClassificationPolicy, facts: GuestFacts) -> Values:
    values: dict[str, Any] = {}
    for key, setting, text in _image_settings(facts):
        if key not in policy.image_settings:
            found.problems.append(
                f"image: {key} has no effect, because [guests] image_settings does not list it"
            )
            continue
        values |= found.read_value(f"image: {key}", setting, text)
    flavors = facts.identity.extra_specs.get("hw:cpu_thread_policy", ThreadPolicy.PREFER)
    if values.get("thread_policy", flavors) != flavors != ThreadPolicy.PREFER:
        found.problems.append(
            f"image: hw_cpu_thread_policy = {values.pop('thread_policy')} differs from hw:cpu_thread_policy ="
            f" {printable_text(flavors[:_MAX_SHOWN])} of the flavor, which counts"
        )
    return values


def _image_settings(facts: GuestFacts) -> Iterator[tuple[str, str, str]]:
    """The properties of the image that are about settings: key, setting, text."""
    for key, text in facts.identity.image_properties.items():
        setting = _NOVA_PROPERTIES.get(key, key.removeprefix(_IMAGE_NAMESPACE))
        if key in _NOVA_PROPERTIES or (key.startswith(_IMAGE_NAMESPACE) and setting in SETTING_NAMES):
            yield key, setting, text


def parse_known_classes(conf: cfg.ConfigOpts) -> KnownClasses:
    """The names of the classes that the configuration has.

    :raises ConfigError: naming section and option.
    """
    return KnownClasses(
        frozenset(parse_classes(conf).classes),
        frozenset(parse_blockio_classes(conf)),
        frozenset(parse_cpu_classes(conf)),
    )


def parse_policy(conf: cfg.ConfigOpts, follows: bool = False) -> ClassificationPolicy:
    """The policy that the configuration has.

    :param follows: another program pins the guests of this host.
    :raises ConfigError: naming section and option.
    """
    known = parse_known_classes(conf)
    options = conf.guests
    if missing := known.missing_class("qos_class", options.default_qos_class):
        raise ConfigError(f"[guests] default_qos_class: {missing}")
    if unknown := sorted(set(options.flavor_settings) - set(SETTING_NAMES)):
        raise ConfigError(
            f"[guests] flavor_settings: there is no setting {unknown[0]}; there are"
            f" {', '.join(SETTING_NAMES)}"
        )
    properties = {*_NOVA_PROPERTIES, *(f"{_IMAGE_NAMESPACE}{setting}" for setting in SETTING_NAMES)}
    if unknown := sorted(set(options.image_settings) - properties):
        raise ConfigError(
            f"[guests] image_settings: {unknown[0]} is not a property with a setting; there are"
            f" {', '.join(sorted(properties))}"
        )
    return ClassificationPolicy(
        parse_rules(conf, known),
        options.default_qos_class,
        frozenset(options.flavor_settings),
        frozenset(options.image_settings),
        known,
        follows,
    )
