"""Microversions of the Placement API, as constants that are named after the changes in each version.

A version is a tuple ``(major, minor)``, so that versions can be compared. The source of this list is "REST
API Version History" in the documentation of OpenStack Placement.
"""

from typing import Final

Microversion = tuple[int, int]

# 1.0: resource providers with inventories and usages; allocations
INITIAL: Final[Microversion] = (1, 0)
# 1.1: aggregates of resource providers
AGGREGATES: Final[Microversion] = (1, 1)
# 1.2: custom resource classes of operators, under `/resource_classes`
CUSTOM_CLASSES: Final[Microversion] = (1, 2)
# 1.3: `member_of` finds resource providers by aggregate
MEMBER_OF: Final[Microversion] = (1, 3)
# 1.4: `resources` finds resource providers with room for amounts
RESOURCES: Final[Microversion] = (1, 4)
# 1.5: all inventories of a resource provider can be deleted in one request
DELETE_INVENTORIES: Final[Microversion] = (1, 5)
# 1.6: traits, and the traits of resource providers
TRAITS: Final[Microversion] = (1, 6)
# 1.7: PUT of a resource class creates it, or succeeds if it exists
IDEMPOTENT_CLASSES: Final[Microversion] = (1, 7)
# 1.8: allocations are written with the project and the user of their consumer
CONSUMER_OWNERS: Final[Microversion] = (1, 8)
# 1.9: `/usages` of a project or a user
PROJECT_USAGES: Final[Microversion] = (1, 9)
# 1.10: `/allocation_candidates`
CANDIDATES: Final[Microversion] = (1, 10)
# 1.11: resource providers link to their allocations
ALLOCATIONS_LINK: Final[Microversion] = (1, 11)
# 1.12: allocations are a mapping by resource provider, and are written in the form in which they are read
ALLOCATIONS_BY_PROVIDER: Final[Microversion] = (1, 12)
# 1.13: POST `/allocations` for several consumers
MANY_CONSUMERS: Final[Microversion] = (1, 13)
# 1.14: parents, roots, and `in_tree` of resource providers
NESTED_PROVIDERS: Final[Microversion] = (1, 14)
# 1.15: answers have the headers `last-modified` and `cache-control`
CACHE_HEADERS: Final[Microversion] = (1, 15)
# 1.16: `limit` is the maximum number of candidates
CANDIDATES_LIMIT: Final[Microversion] = (1, 16)
# 1.17: `required` finds candidates by trait; summaries show the traits of providers
CANDIDATES_TRAITS: Final[Microversion] = (1, 17)
# 1.18: `required` finds resource providers by trait
REQUIRED_TRAITS: Final[Microversion] = (1, 18)
# 1.19: aggregates are written with the generation of their provider
AGGREGATES_GENERATION: Final[Microversion] = (1, 19)
# 1.20: the answer to POST of a resource provider shows the new provider
PROVIDER_ANSWERED: Final[Microversion] = (1, 20)
# 1.21: `member_of` finds candidates by aggregate
CANDIDATES_MEMBER_OF: Final[Microversion] = (1, 21)
# 1.22: `!TRAIT` in `required` forbids a trait
FORBIDDEN_TRAITS: Final[Microversion] = (1, 22)
# 1.23: `code` in the bodies of errors
ERROR_CODES: Final[Microversion] = (1, 23)
# 1.24: `member_of` is allowed several times in a query
REPEATED_MEMBER_OF: Final[Microversion] = (1, 24)
# 1.25: numbered groups, and `group_policy`
GRANULAR_GROUPS: Final[Microversion] = (1, 25)
# 1.26: `reserved` is allowed to be as large as `total`
ALL_RESERVED: Final[Microversion] = (1, 26)
# 1.27: summaries show all resource classes of a provider, not only the requested classes
ALL_CLASSES_SUMMARISED: Final[Microversion] = (1, 27)
# 1.28: consumers have generations
CONSUMER_GENERATIONS: Final[Microversion] = (1, 28)
# 1.29: candidates from nested providers, and whole trees in summaries
NESTED_CANDIDATES: Final[Microversion] = (1, 29)
# 1.30: `/reshaper`
RESHAPER: Final[Microversion] = (1, 30)
# 1.31: `in_tree` finds candidates in one tree
CANDIDATES_IN_TREE: Final[Microversion] = (1, 31)
# 1.32: `!AGGREGATE` in `member_of` forbids an aggregate
FORBIDDEN_AGGREGATES: Final[Microversion] = (1, 32)
# 1.33: suffixes of groups can be words
NAMED_GROUPS: Final[Microversion] = (1, 33)
# 1.34: candidates have `mappings`: the providers that serve each group
MAPPINGS: Final[Microversion] = (1, 34)
# 1.35: `root_required` finds candidates by the traits of their root provider
ROOT_REQUIRED: Final[Microversion] = (1, 35)
# 1.36: `same_subtree`, and groups without resources
SAME_SUBTREE: Final[Microversion] = (1, 36)
# 1.37: a provider can get another parent, or become a root
REPARENTING: Final[Microversion] = (1, 37)
# 1.38: types of consumers
CONSUMER_TYPES: Final[Microversion] = (1, 38)
# 1.39: `required=in:A,B` means any of these traits, and `required` is allowed several times in a query
ANY_TRAITS: Final[Microversion] = (1, 39)

MIN: Final = INITIAL
MAX: Final = ANY_TRAITS

OF_CANDIDATES: Final = r"^1\.(1[0-9]|2[0-9]|3[0-9])$"
"""The pattern of all versions from :data:`CANDIDATES` to :data:`MAX`, for bodies that contain a version."""


def text(version: Microversion) -> str:
    """Return the version as text: ``1.4`` for ``(1, 4)``."""
    return f"{version[0]}.{version[1]}"
