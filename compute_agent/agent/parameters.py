"""The schemas of the parameters of the methods on the UNIX socket."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from marshmallow import Schema, ValidationError, fields, validate, validates_schema

from compute_agent.agent.protocol import RequestError
from compute_agent.classes.guest_classes import parse_annotation
from compute_agent.drivers.processes.launch import GUEST_VARIABLE, VARIABLE_NAME
from compute_agent.model.guest_settings import (
    CLASS_NAME,
    LATENCY_SENSITIVE,
    MAX_ANNOTATION,
    MAX_PRIORITY,
    MAX_VCPUS,
    SETTING_NAMES,
    EmulatorPolicy,
    IsolationLevel,
    MemoryType,
    ThreadPolicy,
)
from compute_agent.report.audit import DEFAULT_MIN_AGE
from compute_agent.resctrl.share_spec import BadShareError


def _check_annotation(text: str) -> None:
    if len(text) > MAX_ANNOTATION:
        raise ValidationError(f"longer than {MAX_ANNOTATION} characters")
    try:
        parse_annotation(text)
    except BadShareError as error:
        raise ValidationError(str(error)) from error


def _check_printable(text: str) -> None:
    """Check that a text is safe in terminals, in the log and in labels of metrics."""
    if not text.isprintable():
        raise ValidationError("only characters that can be printed")


def _check_argument(text: str) -> None:
    """Check that the kernel accepts a text as a program's argument, a path or an environment variable."""
    try:
        usable = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise ValidationError("a character that no argument can have")


def _check_optional_class(text: str) -> None:
    if text and not CLASS_NAME.match(text):
        raise ValidationError("a name of a class, or nothing")


class SettingsSchema(Schema):
    """The settings of a guest."""

    thread_policy = fields.Enum(ThreadPolicy, by_value=True, load_default=ThreadPolicy.PREFER)
    emulator_policy = fields.Enum(EmulatorPolicy, by_value=True, load_default=EmulatorPolicy.SHARE)
    qos_class = fields.String(load_default=LATENCY_SENSITIVE, validate=validate.Regexp(CLASS_NAME))
    priority = fields.Integer(
        strict=True, load_default=0, validate=validate.Range(-MAX_PRIORITY, MAX_PRIORITY)
    )
    resctrl = fields.String(load_default="", validate=_check_annotation)
    blockio_class = fields.String(load_default="", validate=_check_optional_class)
    memory_type = fields.Enum(MemoryType, by_value=True, load_default=MemoryType.ANY)
    cpu_class = fields.String(load_default="", validate=_check_optional_class)
    isolation = fields.Enum(IsolationLevel, by_value=True, load_default=IsolationLevel.UNSET)
    spread = fields.Boolean(load_default=False)
    preserve = fields.Boolean(load_default=False)


class NewGuestSchema(SettingsSchema):
    """The parameters that ``guest.run`` and ``guest.adopt`` share: a guest's identity and settings."""

    uuid = fields.UUID()
    name = fields.String(validate=[validate.Length(1, 200), _check_printable])
    vcpus = fields.Integer(strict=True, validate=validate.Range(1, MAX_VCPUS))


class RunSchema(NewGuestSchema):
    """Parameters of ``guest.run``."""

    command = fields.List(fields.String(validate=_check_argument), required=True, validate=validate.Length(1))
    cwd = fields.String(load_default="/", validate=[validate.Length(1), _check_argument])
    environment = fields.Dict(
        fields.String(
            validate=[
                validate.Regexp(VARIABLE_NAME, error="that is not a name of a variable"),
                validate.NoneOf([GUEST_VARIABLE], error="the agent sets that one itself"),
            ]
        ),
        fields.String(validate=_check_argument),
        load_default=dict,
    )


class AdoptSchema(NewGuestSchema):
    """Parameters of ``guest.adopt``."""

    # Process 1 is init, which no guest can be.
    pid = fields.Integer(strict=True, validate=validate.Range(2))
    cgroup = fields.String(validate=[validate.Length(1), _check_argument])

    @validates_schema
    def _one_origin(self, data: Mapping[str, Any], **_: Any) -> None:
        if ("pid" in data) == ("cgroup" in data):
            raise ValidationError("either this parameter or cgroup is needed", "pid")


class AnnounceSchema(Schema):
    """Parameters of ``guest.announce``: libvirt's XML description of a guest that is about to start."""

    description = fields.String(required=True)


class GuestSchema(Schema):
    """The parameter of methods that concern one guest: the uuid or the name of the guest."""

    guest = fields.String(required=True)


class VerifySchema(Schema):
    """Parameters of ``guest.verify``: the uuid or name of a guest; if missing, all guests."""

    guest = fields.String()


class SetSchema(SettingsSchema, GuestSchema):
    """Parameters of ``guest.set``. Settings that are missing do not get their default values."""

    unset = fields.List(fields.String(validate=validate.OneOf(SETTING_NAMES)), load_default=list)

    def __init__(self) -> None:
        super().__init__(partial=SETTING_NAMES)


class LimitSchema(GuestSchema):
    """Parameters of ``guest.limit``."""

    # 0.01 CPUs is the kernel's smallest quota: 1 ms in a period of 100 ms.
    cpus = fields.Float(allow_none=True, load_default=None, validate=validate.Range(0.01, MAX_VCPUS))


class MoveSchema(GuestSchema):
    """Parameters of ``guest.move``."""

    dry_run = fields.Boolean(load_default=False)


class WatermarkTestSchema(Schema):
    """Parameters of ``watermark.test``."""

    metric = fields.String(load_default="cpu_usage")
    usage = fields.String(required=True)


class ReshapeSchema(Schema):
    """Parameters of ``reshape``."""

    dry_run = fields.Boolean(load_default=False)


class AuditSchema(Schema):
    """Parameters of ``audit``."""

    heal = fields.Boolean(load_default=False)
    delete = fields.Boolean(load_default=False)
    confirmed = fields.List(fields.String(), load_default=None, allow_none=True)
    dry_run = fields.Boolean(load_default=False)
    min_age = fields.Float(load_default=DEFAULT_MIN_AGE, validate=validate.Range(min=0))
    consumers = fields.List(fields.String(), load_default=list)


class DisableSchema(Schema):
    """Parameters of ``host.disable``."""

    reason = fields.String(required=True, validate=[validate.Length(1, 255), _check_printable])


class ReleaseSchema(Schema):
    """Parameters of ``release.survey``."""

    pins = fields.Boolean(load_default=False)
    provider = fields.Boolean(load_default=False)
    claims = fields.Boolean(load_default=False)


class EmptySchema(Schema):
    """The schema of methods without parameters."""


def load(schema: Schema, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check the parameters of a request, and return their values after the schema has converted them.

    :raises RequestError: parameters are wrong; the error names each.
    """
    try:
        loaded: Mapping[str, Any] = schema.load(params)
    except ValidationError as error:
        problems = "; ".join(f"{name}: {problem}" for name, problem in sorted(error.messages_dict.items()))
        raise RequestError(f"bad parameters: {problems}") from error
    return loaded
