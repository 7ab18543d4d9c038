"""Guest rules: sections of the configuration that match guests by properties and give them settings.

A *match* is an option of a section that has patterns for one property of guests, such as the flavor. A rule
applies to a guest if all matches of its section hold. A match holds if one of its patterns matches. For extra
specs and image properties, each key has to match, and one matching pattern of a key is enough. Patterns are
those of a shell: ``*``, ``?`` and ``[abc]``.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from oslo_config import cfg

from compute_agent.classes.guest_classes import parse_annotation
from compute_agent.conf.guest_rule import GUEST_RULE, MATCH
from compute_agent.conf.qos import family_sections
from compute_agent.model.guest import GuestIdentity
from compute_agent.model.guest_settings import SETTING_NAMES, class_section, read_setting
from compute_agent.model.messages import ConfigError
from compute_agent.resctrl.share_spec import BadShareError


@dataclass(frozen=True, slots=True)
class GuestFacts:
    """The properties of a guest that rules can match.

    ``project_id``, ``user_id`` and ``consumer_type`` come from the guest's consumer in Placement, and
    ``resource_classes`` from its allocation. ``without_room`` says that Placement has refused the agent's
    claim for the guest, because the host has no room. ``identity`` contains the flavor, image and owner that
    the driver reports.
    """

    driver: str
    uuid: str = ""
    name: str = ""
    identity: GuestIdentity = field(default_factory=GuestIdentity)
    project_id: str = ""
    user_id: str = ""
    consumer_type: str = ""
    resource_classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()
    without_room: bool = False


_WORDS: Final[Mapping[str, Callable[[GuestFacts], Iterable[str]]]] = {
    "driver": lambda facts: (facts.driver,),
    "flavor": lambda facts: (facts.identity.flavor,),
    "project": lambda facts: (facts.identity.project_id, facts.identity.project_name, facts.project_id),
    "user": lambda facts: (facts.identity.user_id, facts.identity.user_name, facts.user_id),
    "image": lambda facts: (facts.identity.image_id,),
    "name": lambda facts: (facts.name, facts.identity.display_name),
    "consumer_type": lambda facts: (facts.consumer_type,),
    "trait": lambda facts: facts.traits,
    "resource_class": lambda facts: facts.resource_classes,
    "cgroup": lambda facts: (facts.identity.cgroup, facts.identity.cgroup.rpartition("/")[2]),
}
"""For each match, the texts of a guest that its patterns are compared with. No pattern matches an empty text,
which stands for an unknown value.
"""

_PAIRS: Final[Mapping[str, Callable[[GuestFacts], Mapping[str, str]]]] = {
    "extra_specs": lambda facts: facts.identity.extra_specs,
    "image_properties": lambda facts: facts.identity.image_properties,
}

Patterns = Mapping[str, "re.Pattern[str]"]
"""Compiled patterns by the name of a match, or by a key of extra specs or image properties."""


@dataclass(frozen=True, slots=True)
class GuestRule:
    """One section ``[guest_rule:NAME]``.

    - ``order``: rules with a lower number are tried first.
    - ``words`` are the patterns of matches on single texts, by match.
    - ``pairs`` are the patterns of extra specs and image properties, by match and key.
    - ``settings`` are the values that the rule gives to guests, by setting.
    """

    name: str
    order: int = 0
    words: Patterns = field(default_factory=dict)
    pairs: Mapping[str, Patterns] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def matches_guest(self, facts: GuestFacts) -> bool:
        """Whether a guest meets all matches of the rule."""
        for match, pattern in self.words.items():
            if not any(word and pattern.match(word) for word in _WORDS[match](facts)):
                return False
        for match, patterns in self.pairs.items():
            values = _PAIRS[match](facts)
            for key, pattern in patterns.items():
                if key not in values or not pattern.match(values[key]):
                    return False
        return True


def make_rule(
    name: str, order: int, matches: Mapping[str, Sequence[str]], settings: Mapping[str, Any]
) -> GuestRule:
    """Build a rule from the texts of its matches, such as ``{"flavor": ["gold.*"]}``.

    :raises ValueError: a pattern for extra specs or image properties has no key.
    """
    words = {match: _compile_pattern(texts) for match, texts in matches.items() if match in _WORDS and texts}
    pairs = {match: _pair_patterns(texts) for match, texts in matches.items() if match in _PAIRS and texts}
    return GuestRule(name, order, words, pairs, settings)


def _compile_pattern(texts: Iterable[str]) -> re.Pattern[str]:
    # Each translation ends with \Z, so the alternatives match whole texts.
    return re.compile("|".join(map(fnmatch.translate, texts)))


def _pair_patterns(texts: Iterable[str]) -> dict[str, re.Pattern[str]]:
    by_key: dict[str, list[str]] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not key:
            raise ValueError(f"{text!r} has no key: KEY=PATTERN is needed, or KEY for any value")
        by_key.setdefault(key, []).append(value if equals else "*")
    return {key: _compile_pattern(values) for key, values in by_key.items()}


def first_match(rules: Iterable[GuestRule], facts: GuestFacts) -> GuestRule | None:
    """The first of the rules that matches a guest; None if no rule matches."""
    return next((rule for rule in rules if rule.matches_guest(facts)), None)


@dataclass(frozen=True, slots=True)
class KnownClasses:
    """The names of all configured classes, by the setting of guests that names a class."""

    qos_class: frozenset[str] = frozenset()
    blockio_class: frozenset[str] = frozenset()
    cpu_class: frozenset[str] = frozenset()

    def missing_class(self, setting: str, value: Any) -> str:
        """An error text if a setting names a class that does not exist; otherwise empty."""
        if setting not in _CLASS_SETTINGS or not value:
            return ""
        known: frozenset[str] = getattr(self, setting)
        if value in known:
            return ""
        names = ", ".join(sorted(known)) or "none"
        section = f"[{setting}:NAME]"
        kind = _CLASS_SETTINGS[setting]
        return f"there is no {kind} {value!r}; there are {names}, and a section {section} makes another one"


_CLASS_SETTINGS: Final = {
    "qos_class": "class",
    "blockio_class": "class of block I/O",
    "cpu_class": "class of CPUs",
}


def parse_rules(conf: cfg.ConfigOpts, known: KnownClasses) -> tuple[GuestRule, ...]:
    """Read the sections ``[guest_rule:NAME]``, in the order in which they are tried."""
    rules = (_parse_rule(name, options, known) for name, options in family_sections(conf, GUEST_RULE))
    return tuple(sorted(rules, key=lambda rule: (rule.order, rule.name)))


def _parse_rule(name: str, options: Any, known: KnownClasses) -> GuestRule:
    section = class_section(GUEST_RULE, name)
    matches = {match: options[f"{MATCH}{match}"] for match in (*_WORDS, *_PAIRS)}
    # A section without matches would match each guest, so an operator has to write this match explicitly.
    if not any(matches.values()):
        raise ConfigError(f"{section}: the rule has no match_ option; {MATCH}name = * matches every guest")
    texts = {setting: options[setting] for setting in SETTING_NAMES if options[setting] is not None}
    settings = {setting: _read_value(section, setting, text, known) for setting, text in texts.items()}
    try:
        return make_rule(name, options.order, matches, settings)
    except ValueError as error:
        raise ConfigError(f"{section}: {error}") from error


def _read_value(section: str, setting: str, text: Any, known: KnownClasses) -> Any:
    try:
        value = read_setting(setting, str(text))
        if setting == "resctrl":
            parse_annotation(value)
    except (ValueError, BadShareError) as error:
        raise ConfigError(f"{section} {setting} = {text} cannot be used: {error}") from error
    if missing := known.missing_class(setting, value):
        raise ConfigError(f"{section} {setting}: {missing}")
    return value
