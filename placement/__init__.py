"""The placement service: inventories, allocations and candidates over REST."""
