"""Adapts generated requests to existing objects, so that some of them succeed.

A request with random UUIDs and names is refused early. This module replaces its providers, classes, traits
and generations by those of the reference's examples, which exist in the service. Only valid requests are
changed, and they stay valid.
"""

import re
from typing import Any, Final

from schemathesis import Case
from schemathesis.generation import GenerationMode

from tests.placement.running import Admin

PROVIDERS: Final = ("542df8ed-9be2-49b9-b4db-6d3183ff8ec8", "4e8e5957-649f-477b-9e5b-f1f75b21c03c")
CONSUMER: Final = "67a82c9a-4a12-4b0a-8b5b-6e5d0b2a9b11"
CLASSES: Final = ("PCPU", "MEMORY_MB", "LLC", "VCPU")
TRAITS: Final = ("CUSTOM_FAST_CLOCK", "HW_CPU_X86_AVX2", "CUSTOM_BROKEN")

_UUID: Final = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NAME: Final = re.compile("[A-Z0-9_]+")
_CLASS_IN_TEXT: Final = re.compile("[A-Z0-9_]+(?=:)")


def fit(case: Case, service: Admin) -> None:
    """Change a valid request in place, so that it refers to existing objects.

    One third of the requests stays unchanged, and mostly fails.
    """
    if case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE:
        return
    luck = len(repr((case.path_parameters, case.query, case.body)))
    if luck % 3 == 0:
        return
    if "uuid" in case.path_parameters:
        case.path_parameters["uuid"] = PROVIDERS[0]
    if "consumer_uuid" in case.path_parameters:
        case.path_parameters["consumer_uuid"] = CONSUMER
    if "resource_class" in case.path_parameters:
        case.path_parameters["resource_class"] = CLASSES[luck % len(CLASSES)]
    for name, value in case.query.items():
        case.query[name] = _fit_query(name, value)
    if isinstance(case.body, dict):
        _fit_body(case.body, service)


def _fit_query(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_fit_query(name, each) for each in value]
    if isinstance(value, dict):
        return {each: _fit_query(each, text) for each, text in value.items()}
    if not isinstance(value, str):
        return value
    if name.startswith("resources"):
        fitted = _CLASS_IN_TEXT.sub(lambda match: _one_of(CLASSES, match[0]), value)
        return re.sub(r"(?<=:)([0-9])[0-9]*", r"\1", fitted)
    if name.startswith(("required", "root_required")):
        prefix = "in:" if value.startswith("in:") else ""
        return prefix + _NAME.sub(lambda match: _one_of(TRAITS, match[0]), value.removeprefix("in:"))
    if name.startswith("in_tree"):
        return PROVIDERS[1]
    return value


def _fit_body(body: dict[str, Any], service: Admin) -> None:
    for key in list(body):
        value = body.pop(key)
        key = _fit_key(key, value)
        if isinstance(value, dict):
            if key in ("resources", "inventories") and not any(map(_UUID.fullmatch, value)):
                value = {_one_of(CLASSES, name): each for name, each in value.items()}
            _fit_body(value, service)
        elif key == "traits":
            value = sorted({_one_of(TRAITS, name) for name in value})
        elif key == "resource_provider_generation" and isinstance(value, int):
            value = service("GET", f"/resource_providers/{PROVIDERS[0]}").json["generation"]
        elif key == "consumer_generation":
            value = service("GET", f"/allocations/{CONSUMER}").json.get("consumer_generation")
        elif key == "consumer_uuid":
            value = CONSUMER
        elif key == "query":
            value = f"resources={_one_of(CLASSES, value)}:{2 + len(value) % 5}"
        elif key in ("claims", "flavors"):
            for each in value:
                _fit_body(each, service)
        elif key in CLASSES and isinstance(value, int):
            value = 2 + value % 5
        body[key] = value


def _fit_key(key: str, value: Any) -> str:
    """Return the UUID of an existing provider or consumer; leave every fourth one unchanged."""
    if not _UUID.fullmatch(key) or int(key[-1], 16) % 4 == 0:
        return key
    return CONSUMER if isinstance(value, dict) and "consumer_generation" in value else PROVIDERS[0]


def _one_of(names: tuple[str, ...], generated: str) -> str:
    return names[sum(map(ord, generated)) % len(names)]
