"""Watches: what ``[interference:NAME]`` sections say, and which are refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from oslo_config import cfg

from compute_agent.conf.interference import INTERFERENCE
from compute_agent.conf.qos import interference_sections
from compute_agent.interference.signals import SIGNALS, InterferenceSignal
from compute_agent.model.messages import ConfigError
from compute_agent.qos.classes import QosClasses
from compute_agent.qos.guest_command import GuestCommand, guest_command

_COMMAND_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class InterferenceWatch:
    """One section. ``victims`` are the classes that it is about (empty: all).

    Guests of ``consenting`` classes may be limited for others of their class. After ``escalate_after``
    verdicts against a guest for the same victim in a day ``escalate`` is called with its uuid.
    """

    name: str
    signal: InterferenceSignal
    preview: bool = True
    victims: frozenset[str] = frozenset()
    consenting: frozenset[str] = frozenset()
    escalate_after: int = 3
    escalate: GuestCommand | None = None


def parse_watches(conf: cfg.ConfigOpts, classes: QosClasses) -> tuple[InterferenceWatch, ...]:
    """The watches that ``conf`` has, by name.

    :raises ConfigError: naming section and option.
    """
    watches = []
    for name, options in interference_sections(conf):
        section = f"[{INTERFERENCE}{name}]"
        if options.signal is None:
            raise ConfigError(f"{section} signal: which one is not said; there are {', '.join(SIGNALS)}")
        for option in ("victims", "consenting"):
            for word in options[option]:
                if word not in classes.classes:
                    known = ", ".join(sorted(classes.classes))
                    raise ConfigError(f"{section} {option}: there is no class {word!r}; there are {known}")
        for word in options.consenting:
            if classes.protects(word, dedicated=False):
                raise ConfigError(
                    f"{section} consenting: {word} is above [qos] highest_class and never acted on"
                )
        watches.append(
            InterferenceWatch(
                name,
                SIGNALS[options.signal],
                options.mode == "preview",
                frozenset(options.victims),
                frozenset(options.consenting),
                options.escalate_after,
                _command(section, options.escalate_command),
            )
        )
    return tuple(watches)


def _command(section: str, command: str | None) -> GuestCommand | None:
    if command is None:
        return None
    try:
        return guest_command(command, _COMMAND_SECONDS)
    except ValueError as error:
        raise ConfigError(f"{section} escalate_command: {error}") from error
