"""Decides with oslo.policy whether a caller is allowed to perform an operation.

All rules are loaded at once, and loaded rules never change. If the operator's files change, newly loaded
rules replace the old rules. So a request does not read a policy file if the files have not changed.

If a changed file cannot be used, all old rules stay in force.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from oslo_config import cfg
from oslo_context.context import RequestContext
from oslo_policy import _checks, policy

from placement.conf import PROJECT, files_from_environment
from placement.exceptions import Forbidden
from placement.policies import list_rules

LOG = logging.getLogger(__name__)

# the files are not checked at each request, because a check takes tens of microseconds
_SECONDS_BETWEEN_LOOKS: Final = 1.0
"""The number of seconds between two checks whether policy files have changed."""
# the file is checked several times, because perhaps a tool is just replacing the file; until then, the
# defaults without the file would perhaps allow more
_LOOKS_WITHOUT_FILE: Final = 60
"""After this number of successive checks without a policy file, the rules of the file are dropped."""
_REMEMBERED: Final = 1024
"""The maximum number of cached decisions; callers, rules and targets repeat often."""
# a private module is imported, because some of these classes have no public name
_PURE: Final = (
    _checks.TrueCheck,
    _checks.FalseCheck,
    _checks.RuleCheck,
    _checks.RoleCheck,
    _checks.GenericCheck,
)

_Frozen = tuple[tuple[str, Any], ...]
"""Attributes in a hashable form: a tuple of pairs, each with a name and a value."""
_Decide = Callable[[str, _Frozen, _Frozen], bool]


class PolicyEnforcer:
    """The policy rules in force: the defaults, overridden by the operator's policy file and folders.

    The options ``[oslo_policy] policy_file`` and ``policy_dirs`` have the paths of the files. Changes of the
    files take effect within a second. If a changed file is invalid, the error is logged, and the old rules
    stay in force. If the policy file disappears or becomes empty, its old rules stay in force for a minute.

    :raises ValueError: a policy file is invalid.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._next_look = time.monotonic() + _SECONDS_BETWEEN_LOOKS
        # the files are listed before the rules are loaded, so that the next check notices a change meanwhile
        self._loaded = _list_files(conf)
        self._file = conf.find_file(conf.oslo_policy.policy_file)
        #: the number of successive checks that found no policy file
        self._absent = 0
        self._decide = _decision_function(_load(conf))

    def authorize(
        self, context: RequestContext, rule: str, target: Mapping[str, str | None] | None = None
    ) -> None:
        """Check that ``rule`` allows the caller to act on ``target``.

        :param target: the values with which rules compare the caller, such as the ``project_id`` of a query.
            None stands for the ``project_id`` and ``user_id`` of the caller.
        :raises placement.exceptions.Forbidden: the rule does not allow the operation.
        :raises oslo_policy.policy.PolicyNotRegistered: the rule does not exist.
        """
        if time.monotonic() >= self._next_look:
            self._follow_files()
        caller = context.to_policy_values()
        if target is None:
            target = {"project_id": caller["project_id"], "user_id": caller["user_id"]}
        if not self._decide(rule, _freeze_values(caller), _freeze_values(target)):
            raise Forbidden(f"Policy does not allow {rule} to be performed.")

    def _follow_files(self) -> None:
        """Load the rules again if the policy files have changed."""
        # the time is set before the check, so that no other thread checks at the same time
        self._next_look = time.monotonic() + _SECONDS_BETWEEN_LOOKS
        try:
            found = _list_files(self._conf)
            if found == self._loaded:
                self._absent = 0
                return
            file = self._conf.find_file(self._conf.oslo_policy.policy_file)
            if self._file is not None and (file is None or _is_emptied(file, self._loaded)):
                self._absent += 1
                if self._absent == 1:
                    LOG.warning(
                        "The policy file %s is missing or empty; its earlier rules stay in force for a"
                        " minute.",
                        self._file,
                    )
                if self._absent < _LOOKS_WITHOUT_FILE:
                    return
            loaded = _load(self._conf)
            # if the files changed while the rules were loaded, the next check loads the rules again
            if _list_files(self._conf) != found:
                return
            self._loaded, self._file, self._absent = found, file, 0
            self._decide = _decision_function(loaded)
            LOG.info("The changed policy files are in force.")
        except (OSError, ValueError):
            LOG.exception("The changed policy files cannot be used; the earlier rules stay in force.")


def get_enforcer() -> policy.Enforcer:
    """Return the rules in force, for the tools of oslo.policy (entry point ``oslo.policy.enforcer``)."""
    # the tools of oslo.policy use the global configuration, but the service itself never uses it
    cfg.CONF([], project=PROJECT, default_config_files=files_from_environment(os.environ))
    return _load(cfg.CONF)


def _load(conf: cfg.ConfigOpts) -> policy.Enforcer:
    rules = policy.Enforcer(conf)
    rules.register_defaults(list_rules())
    try:
        rules.load_rules()
    # the errors are of many kinds: for instance, a file is invalid YAML, is no mapping, or is not readable
    except Exception as error:
        raise ValueError(f"Policy files {', '.join(_policy_paths(conf))} cannot be used: {error}") from error
    # if this attribute were true, oslo.policy would check for changed files in each decision
    rules.use_conf = False
    for old_name, name in _old_names(rules):
        LOG.warning(
            "The policy files set the rule %s under its former name %s: rename the rule there.",
            name,
            old_name,
        )
    return rules


def _old_names(rules: policy.Enforcer) -> Iterator[tuple[str, str]]:
    """Yield the former and the current name of each rule for which a policy file uses the former name."""
    # oslo.policy also applies rules with a former name, but it gives a Python warning, and Python warnings
    # are not in the log
    for name, default in rules.registered_rules.items():
        # older versions of oslo.policy have an empty list instead of None
        old = default.deprecated_rule
        if old and old.name in rules.file_rules and name not in rules.file_rules:
            yield old.name, name


def _decision_function(rules: policy.Enforcer) -> _Decide:
    """Return a function that decides about a rule, a caller and a target.

    The function caches decisions, because oslo.policy inspects the signature of each check that it calls, and
    an inspection takes some 10 microseconds. The function caches decisions only if all checks depend on
    nothing but the caller and the target (no ``http:`` and no custom class).
    """

    def decide_rule(rule: str, caller: _Frozen, target: _Frozen) -> bool:
        return bool(rules.authorize(rule, _thaw_values(target), _thaw_values(caller)))

    if all(_is_pure(check) for check in rules.rules.values()):
        return lru_cache(maxsize=_REMEMBERED)(decide_rule)
    return decide_rule


def _is_pure(check: _checks.BaseCheck) -> bool:
    if isinstance(check, _checks.AndCheck | _checks.OrCheck):
        return all(_is_pure(part) for part in check.rules)
    if isinstance(check, _checks.NotCheck):
        return _is_pure(check.rule)
    # exact types are compared, because a custom subclass can depend on any data
    return type(check) in _PURE


def _freeze_values(values: Mapping[str, Any]) -> _Frozen:
    # the values are made hashable, because the arguments of a decision are its key in the cache
    return tuple([(name, tuple(value) if type(value) is list else value) for name, value in values.items()])


def _thaw_values(items: _Frozen) -> dict[str, Any]:
    return {name: list(value) if type(value) is tuple else value for name, value in items}


def _list_files(conf: cfg.ConfigOpts) -> list[tuple[str, int, int]]:
    """Return the path, the modification time in ns, and the size of each policy file."""
    return [
        (path, status.st_mtime_ns, status.st_size)
        for path in _policy_paths(conf)
        if (status := _file_status(path)) is not None
    ]


def _is_emptied(file: str, loaded: Iterable[tuple[str, int, int]]) -> bool:
    """Return whether a file is empty now, but had content when the rules were loaded."""
    # most programs truncate a file before they write it, so perhaps the empty file is incomplete
    before = next((size for path, _, size in loaded if path == file), 0)
    status = _file_status(file)
    return before > 0 and (status is None or status.st_size == 0)


def _policy_paths(conf: cfg.ConfigOpts) -> Iterator[str]:
    if file := conf.find_file(conf.oslo_policy.policy_file):
        yield file
    for name in conf.oslo_policy.policy_dirs:
        if folder := conf.find_file(name):
            # the paths are sorted, because oslo.policy reads the files in this order, and later files have
            # precedence over earlier ones
            with os.scandir(folder) as entries:
                yield from sorted(entry.path for entry in entries)


def _file_status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        # the file is missing, or this user cannot read it
        return None
