"""The commands: ``placement-api``, ``placement-manage`` and ``placement-status``."""
