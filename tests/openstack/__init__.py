"""An OpenStack cloud for tests: Keystone, Glance, RabbitMQ, MariaDB and Nova as released, on loopback.

Tests use :func:`tests.openstack.ground.ground` for the common parts of all clouds,
:func:`tests.openstack.cloud.cloud` for Nova with a Placement of one kind, and
:mod:`tests.openstack.scenario` for the actions of users and operators.
"""
