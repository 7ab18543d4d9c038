"""Fields of marshmallow with the errors of JSON schema.

Clients of the Placement API know texts such as "JSON does not validate: 'total' is a required property" and
"Failed validating 'minimum' in schema['properties']['total']". So a field of this module fails with a
:class:`SchemaViolation`: the violated keyword and its sentence. :func:`load` turns the first violation, with
its path, into :class:`~placement.exceptions.InvalidRequest`.
"""

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from marshmallow import Schema as MarshmallowSchema
from marshmallow import ValidationError, fields, missing

from placement.exceptions import InvalidRequest

MAX_INT: Final = 0x7FFFFFFF
"""The largest integer in a column of 32 bits."""
# an error must not become as large as a hostile body
_MAX_SHOWN: Final = 1000
"""Maximum number of characters of a value that an error repeats."""
_MAX_LISTED: Final = 32
"""Maximum number of property names that an error lists."""


class SchemaViolation(str):
    """The sentence of an error, with the violated keyword."""

    keyword: str

    def __new__(cls, keyword: str, sentence: str) -> "SchemaViolation":
        """Make the sentence, and store the keyword."""
        self = super().__new__(cls, sentence)
        self.keyword = keyword
        return self


def violation_error(keyword: str, sentence: str) -> ValidationError:
    """Return the error of a violated keyword, with its sentence."""
    return ValidationError([SchemaViolation(keyword, sentence)])


def shown_value(value: Any) -> str:
    """Return the text of a value for an error: the beginning of its Python representation."""
    try:
        # cut before repr(), because a text may be as large as a body
        text = repr(value[:_MAX_SHOWN] if isinstance(value, str) else value)
    # JSON may be nested deeper than Python can write it
    except RecursionError:
        return f"A deeply nested {'object' if isinstance(value, Mapping) else 'array'}"
    if len(text) <= _MAX_SHOWN and (not isinstance(value, str) or len(value) <= _MAX_SHOWN):
        return text
    return f"{text[:_MAX_SHOWN]}..."


def _wrong_type(value: Any, expected: str) -> ValidationError:
    return violation_error("type", f"{shown_value(value)} is not of type {expected!r}")


class SchemaField(fields.Field[Any]):
    """Base class of the fields in this module, with the words of JSON schema for missing values and null.

    Null is a wrong type without ``allow_none``, even if None is the default.
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
    """A JSON boolean."""

    json_type = "boolean"

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> bool:
        if not isinstance(value, bool):
            raise _wrong_type(value, "boolean")
        return value


class IntegerField(SchemaField):
    """A JSON integer within ``[minimum, maximum]``; a boolean is not an integer."""

    json_type = "integer"

    def __init__(self, minimum: int | None = None, maximum: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.minimum = minimum
        self.maximum = maximum

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            # JSON has only one type of numbers, so 2.0 is an integer, too
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong_type(value, "integer")
        _check_range(value, self.minimum, self.maximum)
        return value


class NumberField(SchemaField):
    """A JSON number as a float within ``[minimum, maximum]``."""

    json_type = "number"

    def __init__(self, minimum: float | None = None, maximum: float | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.minimum = minimum
        self.maximum = maximum

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong_type(value, "number")
        _check_range(value, self.minimum, self.maximum)
        return float(value)


def _check_range(value: float, minimum: float | None, maximum: float | None) -> None:
    if minimum is not None and value < minimum:
        raise violation_error("minimum", f"{shown_value(value)} is less than the minimum of {minimum!r}")
    if maximum is not None and value > maximum:
        raise violation_error("maximum", f"{shown_value(value)} is greater than the maximum of {maximum!r}")


class StringField(SchemaField):
    """A JSON string; ``choices``, lengths and an (unanchored) pattern restrict it.

    :param meaning: words for the pattern, such as "a number from 1 to 9", which errors show instead of it.
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
                "pattern", f"{shown_value(value)} contains characters that no text can have"
            )
        return value


def _compile(pattern: str) -> re.Pattern[str]:
    """Return the pattern as JSON schema reads it: ``$`` is the end, and not before a last line feed."""
    return re.compile(pattern.replace("$", r"\Z"))


def is_storable(value: str) -> bool:
    """Return whether databases take the text: it has no NUL and no lone surrogates."""
    return _UNSTORABLE.search(value) is None


_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


class UuidField(SchemaField):
    """A UUID in any spelling that :class:`uuid.UUID` reads, loaded as its canonical string."""

    json_type = "string"

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if not isinstance(value, str):
            raise _wrong_type(value, "string")
        canonical = canonical_uuid(value)
        if canonical is None:
            raise violation_error("format", f"{shown_value(value)} is not a 'uuid'")
        return canonical


def canonical_uuid(value: str) -> str | None:
    """Return the lower-case form of a UUID with dashes; None for any other text."""
    # most are canonical already, and making an object for each would take longer
    if len(value) == 36 and _CANONICAL.fullmatch(value):
        return value
    try:
        return str(uuid.UUID(value))
    except ValueError:
        return None


_CANONICAL: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class ArrayField(SchemaField):
    """A JSON array of ``items``."""

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
        # loaded before the check for duplicates, so that two spellings of a uuid count as duplicates
        loaded = _load_each({index: (item, self.items) for index, item in enumerate(value)})
        if self.unique and len(set(loaded.values())) != len(value):
            raise violation_error("uniqueItems", f"{shown_value(value)} has non-unique elements")
        return list(loaded.values())


class MapField(SchemaField):
    """A JSON object with any keys that match ``keys``; all values are of one kind.

    ``canonical`` rewrites a key (for instance a UUID) before it is used.

    :param meaning: words for ``keys``, as for :class:`StringField`.
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
            # two spellings of a uuid would silently replace each other
            if name in named:
                raise violation_error(
                    "uniqueItems", f"{shown_value(key)} stands for the same object as another key"
                )
            named[name] = (item, self.values)
        return _load_each(named)


def _load_each(named: Mapping[Any, tuple[Any, fields.Field[Any]]]) -> dict[Any, Any]:
    """Deserialise each value by its field, and gather the errors by name."""
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
    """A JSON object with a :class:`StrictSchema`."""

    json_type = "object"

    def __init__(self, schema: "type[StrictSchema]", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.schema = schema()

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _wrong_type(value, "object")
        return self.schema.load(value)


class StrictSchema(MarshmallowSchema):
    """Base of all schemas: a property that is not declared is an error."""

    error_messages = {"unknown": "unexpected"}  # noqa: RUF012  # declared by marshmallow

    def handle_error(self, error: ValidationError, data: Any, *, many: bool, **kwargs: Any) -> None:
        """Translate the errors of marshmallow into the words of JSON schema."""
        messages = error.messages
        if not isinstance(data, Mapping):
            raise _wrong_type(data, "object")
        if isinstance(messages, dict):
            # a missing property is reported before an unknown one, which may be its misspelt name
            missing_ones = [found for found in messages.values() if _violated_keyword(found) == "required"]
            unknown = [name for name, found in messages.items() if found == ["unexpected"]]
            if missing_ones:
                raise ValidationError(missing_ones[0])
            if unknown:
                raise violation_error("additionalProperties", unexpected_properties(unknown))


def _violated_keyword(found: Any) -> str | None:
    """Return the violated keyword of a list of errors; None if it belongs to no keyword."""
    return getattr(found[0], "keyword", None) if isinstance(found, list) and found else None


def unexpected_properties(names: Sequence[str]) -> str:
    """Return the sentence about properties that a schema does not have."""
    verb = "was" if len(names) == 1 else "were"
    listed = ", ".join(shown_value(name) for name in names[:_MAX_LISTED])
    if len(names) > _MAX_LISTED:
        listed += f" and {len(names) - _MAX_LISTED} more"
    return f"Additional properties are not allowed ({listed} {verb} unexpected)"


def load(schema: MarshmallowSchema, data: Any, prefix: str = "JSON does not validate: ") -> dict[str, Any]:
    """Return the data as the schema reads it.

    :raises InvalidRequest: the data violate the schema; the message has ``prefix``, the first violation and
        its path, in one line.
    """
    try:
        return dict(schema.load(data))
    except ValidationError as error:
        path, violation = _first_violation(error.messages)
        keyword = getattr(violation, "keyword", "type")
        where = f"Failed validating {keyword!r} in schema{_schema_path(path)}"
        raise InvalidRequest(f"{prefix}{violation} {where}{_list_items(path)}") from None


def _first_violation(messages: Any, path: tuple[Any, ...] = ()) -> tuple[tuple[Any, ...], str]:
    if isinstance(messages, Mapping):
        # only the first violation is reported: one error has one sentence
        name = next(iter(messages))
        # marshmallow's name for an error of the whole object, which is no step of a path
        return _first_violation(messages[name], path if name == "_schema" else (*path, name))
    if isinstance(messages, list | tuple):
        return path, messages[0]
    return path, str(messages)


def _list_items(path: tuple[Any, ...]) -> str:
    """Return the items of lists on the path, counted from 1; an empty text without a list."""
    items = [
        f"item {step + 1} of {shown_value(path[at - 1])}"
        for at, step in enumerate(path)
        if at and isinstance(step, int) and not isinstance(path[at - 1], int)
    ]
    return f" ({', '.join(items)})" if items else ""


def _schema_path(path: tuple[Any, ...]) -> str:
    """Return the position of the violation in the data, in the form of schema paths."""
    return "".join(
        "['items']" if isinstance(step, int) else f"['properties'][{shown_value(step)}]" for step in path
    )
