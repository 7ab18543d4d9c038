"""The placement service, with inventories, allocations and candidates over REST."""
