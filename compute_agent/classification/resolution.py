"""Resolution: the settings of a guest, each from its strongest source, and problems with values of sources.

Operators make flavors. An extra spec ``compute_agent:SETTING`` counts if ``[guests] flavor_settings`` lists
the setting. In the same way, ``[guests] label_settings`` and ``[guests] unit_settings`` list the settings
that count in labels of containers and in files of units. An entry ``SETTING=VALUE`` allows only this value.
Tenants make images. A property of an image counts if ``[guests] image_settings`` lists the property.

If flavor and image have different thread policies, the rule of Nova applies
(``get_cpu_thread_policy_constraint`` of ``nova.virt.hardware``). The policy of the image applies only if the
flavor has no policy. If the flavor has another policy than ``prefer``, a different policy of the image is a
problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from oslo_config import cfg

from compute_agent.classes.blockio_classes import parse_blockio_classes
from compute_agent.classes.cpu_classes import parse_cpu_classes
from compute_agent.classes.guest_classes import parse_classes
from compute_agent.classification.rules import GuestFacts, GuestRule, KnownClasses, first_match, parse_rules
from compute_agent.conf.guests import FLAVOR_SETTINGS, IMAGE_SETTINGS
from compute_agent.conf.written import name_hint
from compute_agent.model.guest_settings import (
    BEST_EFFORT,
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
"""Prefix of extra specs of flavors that are settings of guests."""

_IMAGE_NAMESPACE: Final = "compute_agent_"
"""Prefix of image properties that are settings of guests."""

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
"""For each setting about the choice of CPUs, the extra spec with which Nova makes the same choice."""

_MAX_SHOWN: Final = 80
"""Maximum number of characters of a wrong value that the text of a problem shows."""

_MAX_PROBLEMS: Final = 20
"""Maximum number of problems of one guest, because tools of tenants can write any metadata."""

Values = Mapping[str, Any]
"""Values by the name of the setting."""

ManualValues = Mapping[SettingSource, Values]
"""Settings by their source: the settings that operators set for a guest by hand, and those of the fleet."""


@dataclass(frozen=True, slots=True)
class AllowedSettings:
    """The settings that one source, such as flavors, is allowed to choose.

    :ivar option: the option of ``[guests]`` that lists the settings.
    :ivar values: the allowed values by setting; None allows each value.
    """

    option: str
    values: Mapping[str, frozenset[Any] | None]

    @classmethod
    def parse_entries(cls, option: str, entries: Iterable[str], known: KnownClasses) -> AllowedSettings:
        """Parse a list of ``SETTING`` and ``SETTING=VALUE``."""
        values: dict[str, frozenset[Any] | None] = {}
        for entry in sorted(entries):
            setting, separator, text = map(str.strip, entry.partition("="))
            if setting not in SETTING_NAMES:
                raise ConfigError(
                    f"[guests] {option}: there is no setting {setting}; there are {', '.join(SETTING_NAMES)}"
                )
            if not separator:
                values[setting] = None
                continue
            try:
                value = read_setting(setting, text)
            except ValueError as error:
                raise ConfigError(f"[guests] {option}: {entry} cannot be used ({error})") from error
            if missing := known.missing_class(setting, value):
                raise ConfigError(f"[guests] {option}: {missing}")
            before = values.get(setting, frozenset())
            values[setting] = None if before is None else before | {value}
        return cls(option, values)

    def explain_refusal(self, setting: str, value: Any) -> str:
        """The reason why the source cannot choose this value; empty if it can."""
        allowed = self.values.get(setting, frozenset())
        if allowed is None or value in allowed:
            return ""
        if not allowed:
            return f"[guests] {self.option} does not list it"
        texts = ", ".join(sorted(map(setting_text, allowed)))
        return f"[guests] {self.option} lists {setting} only with {texts}"


FLAVOR_ALLOWED: Final = AllowedSettings("flavor_settings", dict.fromkeys(FLAVOR_SETTINGS))
"""The settings that flavors choose by default."""


@dataclass(frozen=True, slots=True)
class ClassificationPolicy:
    """The configuration of classification. The defaults describe a host without rules.

    - ``allowed`` has the settings that flavors, labels and files of units may choose, by source. A source
      without an entry may choose all settings. ``image_settings`` are the image properties that count.
    - ``known`` are the existing classes; None means that names of classes are not checked.
    - ``waits_for_room``: a guest without room for its claim has the class ``BE`` until it gets its claim.
    - ``follows``: another program (Nova) pins guests to CPUs, so that settings about the choice of CPUs have
      no effect.
    """

    rules: tuple[GuestRule, ...] = ()
    default_qos_class: str = LATENCY_SENSITIVE
    allowed: Mapping[SettingSource, AllowedSettings] = field(
        default_factory=lambda: {SettingSource.FLAVOR: FLAVOR_ALLOWED}
    )
    image_settings: frozenset[str] = frozenset(IMAGE_SETTINGS)
    known: KnownClasses | None = None
    follows: bool = False
    waits_for_room: bool = False


_OPTIONS: Final = {
    SettingSource.FLAVOR: "flavor_settings",
    SettingSource.LABEL: "label_settings",
    SettingSource.UNIT: "unit_settings",
}
"""The options of ``[guests]`` that list the settings of a source."""

NO_CLASSIFICATION: Final = ClassificationPolicy()
"""The policy of a host without rules, which does not check names of classes."""


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """The settings of a guest, and the source of each setting.

    - ``sources`` maps the name of each setting to the text of its source, such as ``flavor`` or ``rule
      night``.
    - ``problems`` are messages about values that cannot be used.
    - ``rule`` is the name of the matching rule; empty if no rule matches.
    - ``deferred_class`` is the QoS class that the guest gets with its claim; empty if it has this class now.
    """

    settings: GuestSettings
    sources: Mapping[str, str]
    problems: tuple[str, ...] = ()
    rule: str = ""
    deferred_class: str = ""


class _SettingResolver:
    """Reads the values of each source for one guest, and collects the problems with them."""

    def __init__(self, policy: ClassificationPolicy, facts: GuestFacts) -> None:
        self.policy = policy
        self.facts = facts
        self.problems: list[str] = []

    def read_value(
        self, where: str, setting: str, text: str, allowed: AllowedSettings | None = None
    ) -> Values:
        """Parse ``text`` as the value of a setting. If the text is wrong or not allowed, note a problem.

        The result is a dict with the setting and its value; it is empty if the value cannot be used.
        ``where`` names the source of the text in the message about a problem. Without ``allowed``, each value
        is allowed.
        """
        try:
            value = read_setting(setting, text)
        except ValueError as error:
            self.problems.append(f"{where} = {printable_text(text[:_MAX_SHOWN])!r} cannot be used ({error})")
            return {}
        if allowed is not None and (reason := allowed.explain_refusal(setting, value)):
            self.problems.append(f"{where} has no effect, because {reason}")
            return {}
        return self.check_class(where, setting, value)

    def check_class(self, where: str, setting: str, value: Any) -> Values:
        """Check that the class that a setting names exists.

        The result is a dict with the setting and its value. For an unknown class, a problem is noted, and the
        result is empty. The settings ``qos_class`` and ``blockio_class`` keep their value even for an unknown
        class.
        """
        missing = "" if self.policy.known is None else self.policy.known.missing_class(setting, value)
        if not missing:
            return {setting: value}
        if setting == "qos_class":
            # A class can be removed while guests of it run. The guest keeps the name of the class, and
            # throttling does not act on guests of an unknown class.
            self.problems.append(f"{where}: {missing}; until then no watermark acts on the guest")
            return {setting: value}
        if setting == "blockio_class":
            return {setting: value}  # the controller of block I/O reports each guest of an unknown class
        self.problems.append(f"{where}: {missing}")
        return {}

    def check_classes(self, source: SettingSource, values: Values) -> Values:
        checked: dict[str, Any] = {}
        for setting, value in values.items():
            checked |= self.check_class(f"{setting} ({source})", setting, value)
        return checked

    def declared_values(self, source: SettingSource, values: Values) -> Values:
        """The values that the guest's definition may choose."""
        allowed, kept = self.policy.allowed.get(source), {}
        for setting, value in values.items():
            if allowed is not None and (reason := allowed.explain_refusal(setting, value)):
                self.problems.append(
                    f"{source}: {setting} = {setting_text(value)} has no effect, because {reason}: list it"
                    f" there, or remove it from the {source}"
                )
            else:
                kept[setting] = value
        return self.check_classes(source, kept)

    def flavor_values(self) -> Values:
        values: dict[str, Any] = {}
        allowed = self.policy.allowed.get(SettingSource.FLAVOR)
        for key, text in self.facts.identity.extra_specs.items():
            if key in _NOVA_SPECS:
                # An extra spec compute_agent:SETTING takes precedence over an extra spec of Nova, in any
                # order of the two.
                values = {**self.read_value(f"flavor: {key}", _NOVA_SPECS[key], text), **values}
            elif (setting := key.removeprefix(NAMESPACE)) != key:
                if setting in SETTING_NAMES:
                    values |= self.read_value(f"flavor: {key}", setting, text, allowed)
                else:
                    self._note_unknown("flavor", NAMESPACE, setting)
        return values

    def _note_unknown(self, source: str, namespace: str, setting: str) -> None:
        """Note a problem: the namespace of the agent's settings has no such setting."""
        # A search for a similar name takes long, and a guest can have thousands of unknown names.
        if len(self.problems) < _MAX_PROBLEMS:
            setting = setting[:_MAX_SHOWN]
            hint = name_hint(setting, SETTING_NAMES, f"{namespace}{{}}")
            self.problems.append(f"{source}: there is no setting {namespace}{printable_text(setting)}{hint}")

    def image_values(self) -> Values:
        values: dict[str, Any] = {}
        for key, text in self.facts.identity.image_properties.items():
            setting = _NOVA_PROPERTIES.get(key, key.removeprefix(_IMAGE_NAMESPACE))
            if setting == key:
                continue  # a property without the prefix belongs to another program
            if setting not in SETTING_NAMES:
                self._note_unknown("image", _IMAGE_NAMESPACE, setting)
            elif key in self.policy.image_settings:
                values |= self.read_value(f"image: {key}", setting, text)
            else:
                self.problems.append(
                    f"image: {key} has no effect, because [guests] image_settings does not list it"
                )
        flavors = self.facts.identity.extra_specs.get("hw:cpu_thread_policy", ThreadPolicy.PREFER)
        if values.get("thread_policy", flavors) != flavors != ThreadPolicy.PREFER:
            self.problems.append(
                f"image: hw_cpu_thread_policy = {values.pop('thread_policy')} differs from"
                f" hw:cpu_thread_policy = {printable_text(flavors[:_MAX_SHOWN])} of the flavor, which counts"
            )
        return values


def resolve_settings(
    policy: ClassificationPolicy,
    facts: GuestFacts,
    vcpus: int = 1,
    declared: Values | None = None,
    declared_by: SettingSource = SettingSource.DOMAIN,
    manual: ManualValues | None = None,
) -> ResolvedSettings:
    """Resolve the settings of a guest, each from its strongest source.

    :param facts: the properties that rules match, with extra specs and image properties.
    :param vcpus: the number of guest CPUs.
    :param declared: the settings that the driver found for the guest, for example in the domain's metadata.
    :param declared_by: the source of ``declared``.
    :param manual: the settings for this guest that an operator made by hand or in the fleet's settings.
    """
    found, manual = _SettingResolver(policy, facts), manual or {}
    rule = first_match(policy.rules, facts)
    layers: list[tuple[str, Values]] = [
        *(
            (str(source), found.check_classes(source, manual.get(source, {})))
            for source in (SettingSource.BY_HAND, SettingSource.FLEET)
        ),
        (str(declared_by), found.declared_values(declared_by, declared or {})),
        (str(SettingSource.FLAVOR), found.flavor_values()),
        (str(SettingSource.IMAGE), found.image_values()),
        ("" if rule is None else f"{SettingSource.RULE} {rule.name}", {} if rule is None else rule.settings),
        (str(SettingSource.DEFAULT), {**DEFAULT_VALUES, "qos_class": policy.default_qos_class}),
    ]
    values, sources = {}, {}
    for setting in SETTING_NAMES:
        sources[setting], values[setting] = next(
            (source, layer[setting]) for source, layer in layers if setting in layer
        )
    settings, deferred = GuestSettings(vcpus=vcpus, **values), ""
    # A class that an operator has set by hand waits, too: it would take CPU time from guests with a claim.
    waits = policy.waits_for_room and facts.without_room and not settings.preserve
    if waits and settings.qos_class != BEST_EFFORT:
        deferred, settings = settings.qos_class, replace(settings, qos_class=BEST_EFFORT)
        sources["qos_class"] = str(SettingSource.NO_ROOM)
    if policy.follows and not settings.preserve:
        found.problems += _position_problems(settings, sources)
    problems = tuple(found.problems[:_MAX_PROBLEMS])
    return ResolvedSettings(settings, sources, problems, "" if rule is None else rule.name, deferred)


def _position_problems(settings: GuestSettings, sources: Mapping[str, str]) -> Iterator[str]:
    """Messages about settings for the choice of CPUs, which have no effect because Nova chooses the CPUs."""
    nova_reads = (SettingSource.FLAVOR, SettingSource.IMAGE)
    for setting, spec in _POSITION_SPECS.items():
        is_known = setting != "spread" and sources[setting] in nova_reads
        if setting in settings.chosen_values and not is_known:
            yield (
                f"{setting} = {setting_text(getattr(settings, setting))} ({sources[setting]}) has no effect,"
                f" as [policy] name = follow leaves the choice of CPUs to Nova: set {spec} in the flavor"
            )


def parse_known_classes(conf: cfg.ConfigOpts) -> KnownClasses:
    """Read the names of all configured classes."""
    return KnownClasses(
        frozenset(parse_classes(conf).classes),
        frozenset(parse_blockio_classes(conf)),
        frozenset(parse_cpu_classes(conf)),
    )


def parse_policy(conf: cfg.ConfigOpts, follows: bool = False) -> ClassificationPolicy:
    """Read the configuration of classification.

    :param follows: whether another program (Nova) pins the guests of this host to CPUs.
    """
    known = parse_known_classes(conf)
    options = conf.guests
    if missing := known.missing_class("qos_class", options.default_qos_class):
        raise ConfigError(f"[guests] default_qos_class: {missing}")
    properties = {*_NOVA_PROPERTIES, *(f"{_IMAGE_NAMESPACE}{setting}" for setting in SETTING_NAMES)}
    if unknown := sorted(set(options.image_settings) - properties):
        raise ConfigError(
            f"[guests] image_settings: {unknown[0]} is not a property with a setting; there are"
            f" {', '.join(sorted(properties))}"
        )
    return ClassificationPolicy(
        parse_rules(conf, known),
        options.default_qos_class,
        {
            source: AllowedSettings.parse_entries(name, options[name], known)
            for source, name in _OPTIONS.items()
        },
        frozenset(options.image_settings),
        known,
        follows,
        options.claim and options.no_room == "run",
    )
