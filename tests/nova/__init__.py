"""Nova's own functional tests, as PyPI has them, with this service where they start OpenStack Placement.

:mod:`tests.nova.test_functional` runs them in an environment of its own, as :mod:`tests.nova.inside` there.
"""
