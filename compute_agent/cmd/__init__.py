"""The command line, ``compute-agent``."""
