"""Nova, as PyPI has it, in an environment of its own: its functional tests, and what it makes of flavors.

:mod:`tests.nova.test_functional` runs the tests with this service where they start OpenStack Placement, as
:mod:`tests.nova.inside` there. :mod:`tests.nova.test_flavors` compares what this service makes of flavors
with what Nova asks for, which :mod:`tests.nova.judge` says there.
"""
