"""Has fields of marshmallow that report errors in the words of JSON schema.

Clients of the Placement API know error messages such as "JSON does not validate: 'total' is a required
property" and "Failed validating 'minimum' in schema['properties']['total']". So if a value is invalid, a
field of this module raises an error with a :class:`SchemaViolation`. A violation has the error message, and
the keyword of JSON schema that the value violates. :func:`load` turns the first violation and its path into
an :class:`~placement.exceptions.InvalidRequest`, which also has a plain text without the words of JSON
schema, for paths below ``/ext/v1``.
"""

import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from marshmallow import Schema as MarshmallowSchema
from marshmallow import ValidationError, fields, missing

from placement.exceptions import InvalidRequest

MAX_INT: Final = 0x7FFFFFFF
"""The largest integer that fits into a database column of 32 bits."""
# the number is limited, because an error message must not become as large as a hostile body
_MAX_SHOWN: Final = 1000
"""The maximum number of characters of a value that an error message repeats."""
_MAX_LISTED: Final = 32
"""The maximum number of property names that an error message lists."""
_MAX_COMPARED: Final = 255
"""The maximum length of an unknown name for which an error message has a similar known name."""


class SchemaViolation(str):
    """An error message about a value that violates a schema, with the violated keyword of JSON schema.

    ``plain`` is the same message without the words of JSON schema.
    """

    keyword: str
    plain: str

    def __new__(cls, keyword: str, sentence: str, plain: str | None = None) -> "SchemaViolation":
        """Return the error message, with the keyword and the plain message as attributes."""
        self = super().__new__(cls, sentence)
        self.keyword = keyword
        self.plain = sentence if plain is None else plain
        return self


def violation_error(keyword: str, sentence: str, plain: str | None = None) -> ValidationError:
    """Return an exception with the error message about data that violate a keyword of JSON schema."""
    return ValidationError([SchemaViolation(keyword, sentence, plain)])


def shown_value(value: Any) -> str:
    """Return the beginning of a value's Python representation, for an error message."""
    try:
        # a text is shortened before repr(), because it can be as large as a body
        text = repr(value[:_MAX_SHOWN] if isinstance(value, str) else value)
    # repr() fails for JSON that is nested too deeply
    except RecursionError:
        return f"A deeply nested {'object' if isinstance(value, Mapping) else 'array'}"
    if len(text) <= _MAX_SHOWN and (not isinstance(value, str) or len(value) <= _MAX_SHOWN):
        return text
    return f"{text[:_MAX_SHOWN]}..."


def _wrong_type(value: Any, expected: str) -> ValidationError:
    return violation_error("type", f"{shown_value(value)} is not of type {expected!r}")


class SchemaField(fields.Field[Any]):
    """The base class of the fields, which reports missing values and null in the words of JSON schema.

    Without ``allow_none``, null is a value of a wrong type, even if None is the default of the field.
    """

    json_type = "object"

    def __init__(self, *, allow_none: bool = False, **kwargs: Any) -> None:
        super().__init__(allow_none=allow_none, **kwargs)

    def _validate_missing(self, value: Any) -> None:
        if value is missing and self.required:
            raise violation_error("required", f"{self.name!r} is a required property")
        if value is None and not self.allow_none:
            raise _wrong_type(None, self.json_type)


class BooleanField(SchemaField):
    """A field for a JSON boolean."""

    json_type = "boolean"

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> bool:
        if not isinstance(value, bool):
            raise _wrong_type(value, "boolean")
        return value


class NumberField(SchemaField):
    """A field for a JSON number from ``minimum`` to ``maximum``, loaded as a float."""

    json_type = "number"

    def __init__(self, minimum: float | None = None, maximum: float | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.minimum = minimum
        self.maximum = maximum

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong_type(value, "number")
        self._check_range(value)
        return float(value)

    def _check_range(self, value: float) -> None:
        least, most = self.minimum, self.maximum
        if least is not None and value < least:
            raise violation_error("minimum", f"{shown_value(value)} is less than the minimum of {least!r}")
        if most is not None and value > most:
            raise violation_error("maximum", f"{shown_value(value)} is greater than the maximum of {most!r}")


class IntegerField(NumberField):
    """A field for a JSON integer from ``minimum`` to ``maximum``; the field refuses booleans."""

    json_type = "integer"

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            # JSON has only one type of numbers, so the number 2.0 is an integer
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong_type(value, "integer")
        self._check_range(value)
        return value


class StringField(SchemaField):
    """A field for a JSON string, with limits by ``choices``, lengths, or a pattern that can match anywhere.

    :param meaning: a description of the pattern, such as "a number from 1 to 9". Error messages show the
        description instead of the pattern.
    """

    json_type = "string"

    def __init__(
        self,
        *,
        min_length: int = 0,
        max_length: int | None = None,
        pattern: str | None = None,
        meaning: str | None = None,
        choices: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.min_length = min_length
        self.max_length = max_length
        self.pattern = pattern
        self._expected = f"does not match {pattern!r}" if meaning is None else f"is not {meaning}"
        self._matches = _compile(pattern).search if pattern else None
        self.choices = choices

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if not isinstance(value, str):
            raise _wrong_type(value, "string")
        if self.choices is not None and value not in self.choices:
            raise violation_error("enum", f"{shown_value(value)} is not one of {list(self.choices)!r}")
        if len(value) < self.min_length:
            shortage = "should be non-empty" if self.min_length == 1 else "is too short"
            raise violation_error("minLength", f"{shown_value(value)} {shortage}")
        if self.max_length is not None and len(value) > self.max_length:
            raise violation_error("maxLength", f"{shown_value(value)} is too long")
        if self._matches is not None and not self._matches(value):
            raise violation_error("pattern", f"{shown_value(value)} {self._expected}")
        if not is_storable(value):
            raise violation_error(
                "pattern", f"{shown_value(value)} has a NUL or a lone surrogate, which no text may have"
            )
        return value


def _compile(pattern: str) -> re.Pattern[str]:
    """Compile a pattern with the meaning of JSON schema: ``$`` does not match before a final line feed."""
    return re.compile(pattern.replace("$", r"\Z"))


def is_storable(value: str) -> bool:
    """Return whether all kinds of databases can store a text: a text without NUL and lone surrogates."""
    return _UNSTORABLE.search(value) is None


_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


class UuidField(SchemaField):
    """A field for a UUID in any spelling that :class:`uuid.UUID` reads, loaded as its canonical string.

    :param meaning: a description of the UUID for error messages, such as "the UUID of a root provider".
    """

    json_type = "string"

    def __init__(self, *, meaning: str = "a 'uuid'", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._meaning = meaning

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if not isinstance(value, str):
            raise _wrong_type(value, "string")
        canonical = canonical_uuid(value)
        if canonical is None:
            raise violation_error("format", f"{shown_value(value)} is not {self._meaning}")
        return canonical


def root_field(**options: Any) -> UuidField:
    """Return a field for a host, which is the UUID of its root provider; ``options`` are those of fields."""
    return UuidField(meaning="the UUID of a root provider", **options)


def canonical_uuid(value: str) -> str | None:
    """Return the canonical form of a UUID, in lower case and with dashes; None if the text is no UUID."""
    # most UUIDs are canonical already, and making a UUID object for each UUID would take longer
    if len(value) == 36 and _CANONICAL.fullmatch(value):
        return value
    try:
        return str(uuid.UUID(value))
    except ValueError:
        return None


_CANONICAL: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class ArrayField(SchemaField):
    """A field for a JSON array; the field ``items`` loads each item."""

    json_type = "array"

    def __init__(
        self,
        items: fields.Field[Any],
        *,
        min_items: int = 0,
        max_items: int | None = None,
        unique: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.items = items
        self.min_items = min_items
        self.max_items = max_items
        self.unique = unique

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _wrong_type(value, "array")
        if len(value) < self.min_items:
            shortage = "should be non-empty" if self.min_items == 1 else "is too short"
            raise violation_error("minItems", f"{shown_value(value)} {shortage}")
        if self.max_items is not None and len(value) > self.max_items:
            raise violation_error(
                "maxItems", f"{len(value)} items are too many, the maximum is {self.max_items}"
            )
        # the items are loaded before the check for duplicates, so that two spellings of a UUID are duplicates
        loaded = _load_each({index: (item, self.items) for index, item in enumerate(value)})
        if self.unique and len(set(loaded.values())) != len(value):
            raise violation_error("uniqueItems", f"{shown_value(value)} has non-unique elements")
        return list(loaded.values())


class MapField(SchemaField):
    """A field for a JSON object with keys that match ``keys``; the field ``values`` loads each value.

    ``canonical`` converts each key to its canonical form, such as lower case for a UUID.

    :param meaning: a description of ``keys``, as for :class:`StringField`.
    """

    json_type = "object"

    def __init__(
        self,
        keys: str,
        values: fields.Field[Any],
        *,
        min_properties: int = 0,
        max_properties: int | None = None,
        canonical: Callable[[str], str | None] | None = None,
        meaning: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.keys = keys
        self._expected = (
            f"does not match any of the regexes: {keys!r}" if meaning is None else f"is not {meaning}"
        )
        self._matches = _compile(keys).search
        self.values = values
        self.min_properties = min_properties
        self.max_properties = max_properties
        self.canonical = canonical

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _wrong_type(value, "object")
        if len(value) < self.min_properties:
            raise violation_error("minProperties", f"{shown_value(value)} should be non-empty")
        if self.max_properties is not None and len(value) > self.max_properties:
            raise violation_error(
                "maxProperties",
                f"{len(value)} properties are too many, the maximum is {self.max_properties}",
            )
        named: dict[Any, tuple[Any, fields.Field[Any]]] = {}
        for key, item in value.items():
            name = self.canonical(key) if self.canonical else key
            if name is None or not self._matches(name):
                raise violation_error("additionalProperties", f"{shown_value(key)} {self._expected}")
            # two spellings of a UUID are an error, because otherwise the value of one spelling would silently
            # replace the value of the other spelling
            if name in named:
                raise violation_error(
                    "uniqueItems", f"{shown_value(key)} stands for the same object as another key"
                )
            named[name] = (item, self.values)
        return _load_each(named)


def _load_each(named: Mapping[Any, tuple[Any, fields.Field[Any]]]) -> dict[Any, Any]:
    """Load each value with its field, and raise an error with all errors by name."""
    loaded: dict[Any, Any] = {}
    errors: dict[Any, Any] = {}
    for name, (item, field) in named.items():
        try:
            loaded[name] = field.deserialize(item)
        except ValidationError as error:
            errors[name] = error.messages
    if errors:
        raise ValidationError(errors)
    return loaded


class ObjectField(SchemaField):
    """A field for a JSON object that a :class:`StrictSchema` describes."""

    json_type = "object"

    def __init__(self, schema: "type[StrictSchema]", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.schema = schema()

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _wrong_type(value, "object")
        return self.schema.load(value)


class StrictSchema(MarshmallowSchema):
    """The base class of all schemas, which refuse undeclared properties."""

    error_messages = {"unknown": "unexpected"}  # noqa: RUF012  # declared by marshmallow

    def handle_error(self, error: ValidationError, data: Any, *, many: bool, **kwargs: Any) -> None:
        """Translate marshmallow's error messages into the words of JSON schema."""
        messages = error.messages
        if not isinstance(data, Mapping):
            raise _wrong_type(data, "object")
        if isinstance(messages, dict):
            # a missing property is reported first, because perhaps an unknown property is its misspelling
            missing_ones = {
                name: found[0] for name, found in messages.items() if _violated_keyword(found) == "required"
            }
            unknown = [name for name, found in messages.items() if found == ["unexpected"]]
            plain = unknown_names(unknown, self.fields)
            if missing_ones:
                name, violation = next(iter(missing_ones.items()))
                # the missing property can be one of the object ``name``, instead of ``name`` itself
                where = _field_names((name,)) if name in data else ""
                sentences = (f"{where}{violation.plain}", plain)
                raise violation_error("required", violation, "; ".join(filter(None, sentences)))
            if unknown:
                raise violation_error("additionalProperties", unexpected_properties(unknown), plain)


def _violated_keyword(found: Any) -> str | None:
    """Return the keyword that a list of errors violates; None if the errors belong to no keyword."""
    return getattr(found[0], "keyword", None) if isinstance(found, list) and found else None


def unexpected_properties(names: Sequence[str]) -> str:
    """Return the error message for properties that a schema does not have."""
    verb = "was" if len(names) == 1 else "were"
    listed = ", ".join(shown_value(name) for name in names[:_MAX_LISTED])
    if len(names) > _MAX_LISTED:
        listed += f" and {len(names) - _MAX_LISTED} more"
    return f"Additional properties are not allowed ({listed} {verb} unexpected)"


def unknown_names(names: Sequence[str], known: Iterable[str]) -> str:
    """Return the plain error message for unknown names, with similar known names; empty for no names."""
    shown = [f"{shown_value(name)}{similar_name(name, known)}" for name in names[:_MAX_LISTED]]
    if len(names) > _MAX_LISTED:
        shown.append(f"{len(names) - _MAX_LISTED} more")
    return f"unknown name{'' if len(names) == 1 else 's'} {', '.join(shown)}" if names else ""


def similar_name(name: str, known: Iterable[str], min_ratio: float = 0.75) -> str:
    """Return a question in parentheses with the most similar known name; empty if no name is similar.

    :param min_ratio: the least similarity, from 0 to 1.
    """
    # a hostile name is long, and the time for a comparison grows with the square of its length
    near = get_close_matches(name, sorted(known), 1, min_ratio) if len(name) <= _MAX_COMPARED else []
    return f" (did you mean {near[0]}?)" if near else ""


def load(schema: MarshmallowSchema, data: Any, prefix: str = "JSON does not validate: ") -> dict[str, Any]:
    """Return the data, checked and converted by the schema.

    :raises InvalidRequest: the data violate the schema. The message has ``prefix``, the first violation, and
        the path of this violation. The plain message has the names of the fields instead of the path.
    """
    try:
        return dict(schema.load(data))
    except ValidationError as error:
        path, violation = _first_violation(error.messages)
        keyword = getattr(violation, "keyword", "type")
        where = f"Failed validating {keyword!r} in schema{_schema_path(path)}"
        items = _list_items(path)
        plain = f"{prefix}{_field_names(path)}{getattr(violation, 'plain', violation)}{items}"
        raise InvalidRequest(f"{prefix}{violation} {where}{items}", plain_detail=plain) from None


def _first_violation(messages: Any, path: tuple[Any, ...] = ()) -> tuple[tuple[Any, ...], str]:
    if isinstance(messages, Mapping):
        # only the first violation is reported, because an answer has one error message
        name = next(iter(messages))
        # ``_schema`` is no step of the path, because marshmallow uses this name for errors of a whole object
        return _first_violation(messages[name], path if name == "_schema" else (*path, name))
    if isinstance(messages, list | tuple):
        return path, messages[0]
    return path, str(messages)


def _list_items(path: tuple[Any, ...]) -> str:
    """Return a text with the numbers of list items on a path, from 1; an empty text for no list items."""
    items = [
        f"item {step + 1} of {shown_value(path[at - 1])}"
        for at, step in enumerate(path)
        if at and isinstance(step, int) and not isinstance(path[at - 1], int)
    ]
    return f" ({', '.join(items)})" if items else ""


def _field_names(path: tuple[Any, ...]) -> str:
    """Return the names of the fields on a path, such as ``claims: flavor: ``; empty for no fields."""
    return "".join(
        # the keys of a map can be any text
        f"{step if len(step) <= _MAX_COMPARED and step.isprintable() else shown_value(step)}: "
        for step in path
        if not isinstance(step, int)
    )


def _schema_path(path: tuple[Any, ...]) -> str:
    """Return the location of a violation in the data, in the notation of schema paths."""
    return "".join(
        "['items']" if isinstance(step, int) else f"['properties'][{shown_value(step)}]" for step in path
    )
