"""Decides by oslo.policy whether a caller may do something.

The rules in force are loaded once and never change; when the operator's files
do, rules loaded anew take their place. So a request costs no look at the file
system, and a file that cannot be read never leaves half of its rules in force.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, Protocol

from oslo_config import cfg
from oslo_policy import _checks, policy

from placement.conf import PROJECT, files_from_environment
from placement.exceptions import Forbidden
from placement.policies import list_rules

LOG = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS: Final = 1.0
_LOOKS_WITHOUT_FILE: Final = 60  # somebody may be replacing it
_REMEMBERED: Final = 1024
_PURE: Final = (  # some of them have no public name
    _checks.TrueCheck,
    _checks.FalseCheck,
    _checks.RuleCheck,
    _checks.RoleCheck,
    _checks.GenericCheck,
)

_Frozen = tuple[tuple[str, Any], ...]
_Decide = Callable[[str, _Frozen, _Frozen], bool]


class PolicyCaller(Protocol):
    """Who asks, as rules see them."""

    def to_policy_values(self) -> dict[str, Any]:
        """Attributes by name: ``user_id``, ``project_id``, ``roles``, ``system_scope`` ..."""


class PolicyEnforcer:
    """The rules in force: the defaults, and over them the operator's policy file and folders.

    Where they are is said by ``[oslo_policy] policy_file`` and ``policy_dirs``;
    changes of theirs count from the next second on.

    :raises ValueError: the files cannot be used (when made; later a broken file
        is logged and the rules from before stay in force).
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._next_look = time.monotonic() + _SECONDS_BETWEEN_LOOKS
        self._loaded = _files(conf)
        self._file = conf.find_file(conf.oslo_policy.policy_file)
        self._absent = 0  # looks at which the policy file was not there
        self._decide = _decider(_load(conf))

    def authorize(
        self, context: PolicyCaller, rule: str, target: Mapping[str, str | None] | None = None
    ) -> None:
        """Return if ``rule`` lets the caller do this to ``target``.

        :param target: what rules may compare with, for instance the
            ``project_id`` a query is about; None for the caller's own
            ``project_id`` and ``user_id``.
        :raises placement.exceptions.Forbidden: it does not.
        :raises oslo_policy.policy.PolicyNotRegistered: there is no such rule.
        """
        if time.monotonic() >= self._next_look:
            self._look()
        caller = context.to_policy_values()
        if target is None:
            target = {"project_id": caller["project_id"], "user_id": caller["user_id"]}
        if not self._decide(rule, _frozen(caller), _frozen(target)):
            raise Forbidden(f"Policy does not allow {rule} to be performed.")

    def _look(self) -> None:
        """Take up changed files."""
        self._next_look = time.monotonic() + _SECONDS_BETWEEN_LOOKS
        try:
            found = _files(self._conf)
            if found == self._loaded:
                self._absent = 0
                return
            file = self._conf.find_file(self._conf.oslo_policy.policy_file)
            if self._file is not None and (file is None or _is_emptied(file, self._loaded)):
                self._absent += 1
                if self._absent == 1:
                    LOG.warning("The policy file %s is gone or empty; its rules stay for now.", self._file)
                if self._absent < _LOOKS_WITHOUT_FILE:
                    return
            loaded = _load(self._conf)
            if _files(self._conf) != found:
                return  # somebody writes at this moment: the next look will tell
            self._loaded, self._file, self._absent = found, file, 0
            self._decide = _decider(loaded)
            LOG.info("The changed policy files are in force.")
        except (OSError, ValueError):
            LOG.exception("The changed policy files cannot be used; the rules from before stay in force.")


def get_enforcer() -> policy.Enforcer:
    """The rules in force on this machine, for oslo.policy's tools (``oslo.policy.enforcer``).

    These know no configuration but the global one, which the service never uses.
    """
    cfg.CONF([], project=PROJECT, default_config_files=files_from_environment(os.environ))
    return _load(cfg.CONF)


def _load(conf: cfg.ConfigOpts) -> policy.Enforcer:
    rules = policy.Enforcer(conf)
    rules.register_defaults(list_rules())
    try:
        rules.load_rules()
    except Exception as error:  # of many kinds: no YAML, no mapping, no permission
        raise ValueError(f"Policy files {', '.join(_paths(conf))} cannot be used: {error}") from error
    rules.use_conf = False  # what is loaded stays as it is
    for old_name, name in _old_names(rules):
        LOG.warning(
            "Rule %s goes by rule %s of the policy files, its former name: write it there.", name, old_name
        )
    return rules


def _old_names(rules: policy.Enforcer) -> Iterator[tuple[str, str]]:
    """Rules of the operator's files under a former name, with their names now.

    oslo.policy applies such a rule, but says so as a Python warning, which no log has.
    """
    for name, default in rules.registered_rules.items():
        old = default.deprecated_rule
        if old is not None and old.name in rules.file_rules and name not in rules.file_rules:
            yield old.name, name


def _decider(rules: policy.Enforcer) -> _Decide:
    """The rules as a function of rule, caller and target.

    oslo.policy inspects the signature of every check that it calls, some 10
    microseconds each. Where all checks are functions of caller and target
    alone (not ``http:`` or an operator's extension), decisions are remembered.
    """

    def decide(rule: str, caller: _Frozen, target: _Frozen) -> bool:
        return bool(rules.authorize(rule, _thawed(target), _thawed(caller)))

    if all(_is_pure(check) for check in rules.rules.values()):
        return lru_cache(maxsize=_REMEMBERED)(decide)
    return decide


def _is_pure(check: _checks.BaseCheck) -> bool:
    if isinstance(check, _checks.AndCheck | _checks.OrCheck):
        return all(_is_pure(part) for part in check.rules)
    if isinstance(check, _checks.NotCheck):
        return _is_pure(check.rule)
    return type(check) in _PURE


def _frozen(values: Mapping[str, Any]) -> _Frozen:
    return tuple([(name, tuple(value) if type(value) is list else value) for name, value in values.items()])


def _thawed(items: _Frozen) -> dict[str, Any]:
    return {name: list(value) if type(value) is tuple else value for name, value in items}


def _files(conf: cfg.ConfigOpts) -> list[tuple[str, int, int]]:
    """Path, time of change (ns) and size of every policy file there is."""
    return [
        (path, status.st_mtime_ns, status.st_size)
        for path in _paths(conf)
        if (status := _stat(path)) is not None
    ]


def _is_emptied(file: str, loaded: Iterable[tuple[str, int, int]]) -> bool:
    """Whether a file without content had some before: most programs truncate what they write anew."""
    before = next((size for path, _, size in loaded if path == file), 0)
    status = _stat(file)
    return before > 0 and (status is None or status.st_size == 0)


def _paths(conf: cfg.ConfigOpts) -> Iterator[str]:
    if file := conf.find_file(conf.oslo_policy.policy_file):
        yield file
    for name in conf.oslo_policy.policy_dirs:
        if folder := conf.find_file(name):
            with os.scandir(folder) as entries:
                yield from sorted(entry.path for entry in entries)


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:  # gone, or not ours to see
        return None
