"""Nova from PyPI in an environment of its own: its functional tests, and its translation of flavors.

:mod:`tests.nova.test_functional` runs Nova's tests with this service in place of OpenStack Placement.
:mod:`tests.nova.inside` runs them in Nova's environment. :mod:`tests.nova.test_flavors` compares this
service's translation of flavors with Nova's queries, which :mod:`tests.nova.judge` prints in Nova's
environment.
"""
