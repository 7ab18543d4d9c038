"""Lists of versions of the dependencies, each of which the quick tests run with."""
