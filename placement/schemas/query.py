"""Parses several query strings of the API at a microversion, but not those of allocation candidates."""

import re
from dataclasses import dataclass
from typing import Final

from placement import microversion
from placement.exceptions import InvalidRequest
from placement.microversion import Microversion
from placement.schemas import terms
from placement.schemas.base import StrictSchema, StringField, UuidField
from placement.schemas.terms import PageLimit, Params, all_values, load_query, since_version
from placement.search.request import ProviderFilter
from placement.store.changes import ChangeCursor


class ProvidersQuery(StrictSchema):
    """The parameters of ``GET /resource_providers``."""

    name = StringField()
    uuid = UuidField()
    member_of = StringField(metadata=since_version(microversion.MEMBER_OF))
    resources = StringField(metadata=since_version(microversion.RESOURCES))
    in_tree = UuidField(metadata=since_version(microversion.NESTED_PROVIDERS))
    required = StringField(metadata=since_version(microversion.REQUIRED_TRAITS))


class _ProjectQuery(StrictSchema):
    """The parameters of requests about one project, such as ``GET /ext/v1/reservation_limits``."""

    project_id = StringField(min_length=1, max_length=255)


class UsagesQuery(StrictSchema):
    """The parameters of ``GET /usages``."""

    project_id = StringField(
        required=True, min_length=1, max_length=255, metadata=since_version(microversion.PROJECT_USAGES)
    )
    user_id = StringField(min_length=1, max_length=255, metadata=since_version(microversion.PROJECT_USAGES))
    consumer_type = StringField(
        pattern="^[A-Z0-9_]+$|^all$|^unknown$",
        min_length=1,
        max_length=255,
        metadata=since_version(microversion.CONSUMER_TYPES),
    )


class TraitsQuery(StrictSchema):
    """The parameters of ``GET /traits``."""

    name = StringField(metadata=since_version(microversion.TRAITS))
    associated = StringField(metadata=since_version(microversion.TRAITS))


@dataclass(frozen=True, slots=True)
class UsagesFilter:
    """The project, user and consumer type of usages; the type can also be ``all`` or ``unknown``."""

    project_id: str
    user_id: str | None = None
    consumer_type: str | None = None


@dataclass(frozen=True, slots=True)
class TraitsFilter:
    """A filter by names of traits, by a prefix, and by whether a provider has the trait.

    None means no filter.
    """

    names: frozenset[str] | None = None
    prefix: str | None = None
    associated: bool | None = None

    def lists_trait(self, name: str, associated: bool) -> bool:
        """Return whether the filter lists a trait.

        :param associated: whether a provider has the trait.
        """
        return (
            (self.names is None or name in self.names)
            and (self.prefix is None or name.startswith(self.prefix))
            and self.associated in (None, associated)
        )


def parse_provider_filter(params: Params, version: Microversion) -> ProviderFilter:
    """Parse the query string of ``GET /resource_providers``; raise InvalidRequest if it is invalid."""
    values = load_query(ProvidersQuery, params, version)
    member_of, forbidden_aggregates = terms.parse_member_of(all_values(params, "member_of"), version)
    required, forbidden = terms.parse_required(all_values(params, "required"), version)
    return ProviderFilter(
        # an empty name means no filter
        name=values.get("name") or None,
        uuid=values.get("uuid"),
        member_of=member_of,
        forbidden_aggregates=forbidden_aggregates,
        resources=terms.parse_resources(values["resources"]) if "resources" in values else {},
        in_tree=values.get("in_tree"),
        required=required,
        forbidden=forbidden,
    )


def parse_project(params: Params, version: Microversion) -> str | None:
    """Return the project in a query that has no other parameters; None if the query has no project.

    :raises InvalidRequest: the query is invalid.
    """
    project_id: str | None = load_query(_ProjectQuery, params, version).get("project_id")
    return project_id


def parse_usages(params: Params, version: Microversion) -> UsagesFilter:
    """Parse the query string of ``GET /usages``; raise InvalidRequest if it is invalid."""
    return UsagesFilter(**load_query(UsagesQuery, params, version))


# the flag DOTALL is set, so that names with a line feed also match
_TRAIT_NAMES: Final = re.compile(r"(in|startswith):(.*)", re.DOTALL)


def parse_traits(params: Params, version: Microversion) -> TraitsFilter:
    """Parse the query string of ``GET /traits``; raise InvalidRequest if it is invalid."""
    values = load_query(TraitsQuery, params, version)
    names: frozenset[str] | None = None
    prefix: str | None = None
    if "name" in values:
        match = _TRAIT_NAMES.fullmatch(values["name"])
        if match is None:
            raise InvalidRequest(
                "Badly formatted name parameter. Expected name query string parameter in form: "
                f'?name=[in|startswith]:[name1,name2|prefix]. Got: "{values["name"]}"'
            )
        if match[1] == "in":
            names = frozenset(match[2].split(","))
        else:
            prefix = match[2]
    associated = values.get("associated")
    # upper case and lower case are allowed, as in OpenStack Placement
    if associated is not None and associated.lower() not in ("true", "false"):
        raise InvalidRequest('The query parameter "associated" only accepts "true" or "false"')
    return TraitsFilter(names, prefix, None if associated is None else associated.lower() == "true")


class _ChangesQuery(StrictSchema):
    """The parameters of ``GET /ext/v1/changes``."""

    since = StringField()
    wait = StringField(pattern="^([0-9]|[1-5][0-9]|60)$", meaning="a number of seconds from 0 to 60")
    limit = PageLimit()


@dataclass(frozen=True, slots=True)
class ChangesFollowing:
    """A request for changes: a cursor, the number of seconds to wait, and the maximum number of changes.

    A cursor that is None asks for a first cursor.
    """

    since: ChangeCursor | None
    wait: float
    limit: int


def parse_following(params: Params, version: Microversion) -> ChangesFollowing:
    """Parse the query string of a request for changes; raise InvalidRequest if it is invalid."""
    values = load_query(_ChangesQuery, params, version)
    return ChangesFollowing(
        ChangeCursor.parse(values["since"]) if "since" in values else None,
        float(values.get("wait", 0)),
        values["limit"],
    )
