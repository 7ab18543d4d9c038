"""Lists of versions of the dependencies. The quick tests run with each list."""
