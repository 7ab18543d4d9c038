"""The policy rules for the resources of OpenStack Placement.

The names and defaults of rules are the same as in the documentation of OpenStack Placement.
"""

from typing import Final

from placement.policies.base import ADMIN_OR_PROJECT_READER_OR_SERVICE, SERVICE, define_rule

LIST_PROVIDERS: Final = "placement:resource_providers:list"
CREATE_PROVIDER: Final = "placement:resource_providers:create"
SHOW_PROVIDER: Final = "placement:resource_providers:show"
UPDATE_PROVIDER: Final = "placement:resource_providers:update"
DELETE_PROVIDER: Final = "placement:resource_providers:delete"

LIST_CLASSES: Final = "placement:resource_classes:list"
CREATE_CLASS: Final = "placement:resource_classes:create"
SHOW_CLASS: Final = "placement:resource_classes:show"
UPDATE_CLASS: Final = "placement:resource_classes:update"
DELETE_CLASS: Final = "placement:resource_classes:delete"

LIST_INVENTORIES: Final = "placement:resource_providers:inventories:list"
CREATE_INVENTORY: Final = "placement:resource_providers:inventories:create"
SHOW_INVENTORY: Final = "placement:resource_providers:inventories:show"
UPDATE_INVENTORIES: Final = "placement:resource_providers:inventories:update"
DELETE_INVENTORIES: Final = "placement:resource_providers:inventories:delete"
_INVENTORIES: Final = "/resource_providers/{uuid}/inventories"
_INVENTORY: Final = "/resource_providers/{uuid}/inventories/{resource_class}"

LIST_AGGREGATES: Final = "placement:resource_providers:aggregates:list"
UPDATE_AGGREGATES: Final = "placement:resource_providers:aggregates:update"
_AGGREGATES: Final = "/resource_providers/{uuid}/aggregates"

PROVIDER_USAGES: Final = "placement:resource_providers:usages"
TOTAL_USAGES: Final = "placement:usages"

LIST_TRAITS: Final = "placement:traits:list"
SHOW_TRAIT: Final = "placement:traits:show"
UPDATE_TRAIT: Final = "placement:traits:update"
DELETE_TRAIT: Final = "placement:traits:delete"
LIST_PROVIDER_TRAITS: Final = "placement:resource_providers:traits:list"
UPDATE_PROVIDER_TRAITS: Final = "placement:resource_providers:traits:update"
DELETE_PROVIDER_TRAITS: Final = "placement:resource_providers:traits:delete"
_PROVIDER_TRAITS: Final = "/resource_providers/{uuid}/traits"

MANAGE_ALLOCATIONS: Final = "placement:allocations:manage"
LIST_ALLOCATIONS: Final = "placement:allocations:list"
UPDATE_ALLOCATIONS: Final = "placement:allocations:update"
DELETE_ALLOCATIONS: Final = "placement:allocations:delete"
LIST_PROVIDER_ALLOCATIONS: Final = "placement:resource_providers:allocations:list"
_ALLOCATIONS: Final = "/allocations/{consumer_uuid}"

LIST_CANDIDATES: Final = "placement:allocation_candidates:list"

RESHAPE: Final = "placement:reshaper:reshape"

RULES: Final = [
    define_rule(LIST_PROVIDERS, "List resource providers.", ("GET", "/resource_providers")),
    define_rule(CREATE_PROVIDER, "Create a resource provider.", ("POST", "/resource_providers")),
    define_rule(SHOW_PROVIDER, "Show a resource provider.", ("GET", "/resource_providers/{uuid}")),
    define_rule(UPDATE_PROVIDER, "Update a resource provider.", ("PUT", "/resource_providers/{uuid}")),
    define_rule(DELETE_PROVIDER, "Delete a resource provider.", ("DELETE", "/resource_providers/{uuid}")),
    define_rule(LIST_CLASSES, "List resource classes.", ("GET", "/resource_classes")),
    define_rule(CREATE_CLASS, "Create a custom resource class.", ("POST", "/resource_classes")),
    define_rule(SHOW_CLASS, "Show a resource class.", ("GET", "/resource_classes/{name}")),
    define_rule(
        UPDATE_CLASS, "Create or rename a custom resource class.", ("PUT", "/resource_classes/{name}")
    ),
    define_rule(DELETE_CLASS, "Delete a custom resource class.", ("DELETE", "/resource_classes/{name}")),
    define_rule(LIST_INVENTORIES, "List the inventories of a resource provider.", ("GET", _INVENTORIES)),
    define_rule(CREATE_INVENTORY, "Create one inventory of a resource provider.", ("POST", _INVENTORIES)),
    define_rule(SHOW_INVENTORY, "Show one inventory of a resource provider.", ("GET", _INVENTORY)),
    define_rule(
        UPDATE_INVENTORIES,
        "Replace one or all inventories of a resource provider.",
        ("PUT", _INVENTORIES),
        ("PUT", _INVENTORY),
    ),
    define_rule(
        DELETE_INVENTORIES,
        "Delete one or all inventories of a resource provider.",
        ("DELETE", _INVENTORIES),
        ("DELETE", _INVENTORY),
    ),
    define_rule(LIST_AGGREGATES, "List the aggregates of a resource provider.", ("GET", _AGGREGATES)),
    define_rule(UPDATE_AGGREGATES, "Replace the aggregates of a resource provider.", ("PUT", _AGGREGATES)),
    define_rule(
        PROVIDER_USAGES,
        "Show the usages of a resource provider.",
        ("GET", "/resource_providers/{uuid}/usages"),
    ),
    define_rule(
        TOTAL_USAGES,
        "Show the usages of a project, or of a user in it; the target is the project_id of the query.",
        ("GET", "/usages"),
        check=ADMIN_OR_PROJECT_READER_OR_SERVICE,
    ),
    define_rule(LIST_TRAITS, "List traits.", ("GET", "/traits")),
    define_rule(SHOW_TRAIT, "Show whether a trait exists.", ("GET", "/traits/{name}")),
    define_rule(UPDATE_TRAIT, "Create a custom trait.", ("PUT", "/traits/{name}")),
    define_rule(DELETE_TRAIT, "Delete a custom trait.", ("DELETE", "/traits/{name}")),
    define_rule(LIST_PROVIDER_TRAITS, "List the traits of a resource provider.", ("GET", _PROVIDER_TRAITS)),
    define_rule(
        UPDATE_PROVIDER_TRAITS, "Replace the traits of a resource provider.", ("PUT", _PROVIDER_TRAITS)
    ),
    define_rule(
        DELETE_PROVIDER_TRAITS, "Remove the traits of a resource provider.", ("DELETE", _PROVIDER_TRAITS)
    ),
    define_rule(
        MANAGE_ALLOCATIONS, "Replace the allocations of several consumers.", ("POST", "/allocations")
    ),
    define_rule(LIST_ALLOCATIONS, "List the allocations of a consumer.", ("GET", _ALLOCATIONS)),
    define_rule(UPDATE_ALLOCATIONS, "Replace the allocations of a consumer.", ("PUT", _ALLOCATIONS)),
    define_rule(DELETE_ALLOCATIONS, "Delete the allocations of a consumer.", ("DELETE", _ALLOCATIONS)),
    define_rule(
        LIST_PROVIDER_ALLOCATIONS,
        "List the allocations of a resource provider.",
        ("GET", "/resource_providers/{uuid}/allocations"),
    ),
    define_rule(LIST_CANDIDATES, "List allocation candidates.", ("GET", "/allocation_candidates")),
    define_rule(
        RESHAPE, "Move inventories and allocations between providers.", ("POST", "/reshaper"), check=SERVICE
    ),
]
