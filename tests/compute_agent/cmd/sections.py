"""Sections of configuration files for tests of commands."""

QOS = "interval = 0.1\nevict_grace = 30"
# The host uses more than a thousandth of its memory, and never all of it.
FULL = "metric = memory_usage\nfor_samples = 1\ncool_down = 0\n"
