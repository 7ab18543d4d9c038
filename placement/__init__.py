"""The placement service: a REST API for resource providers, their inventories, allocations and candidates."""
