"""An OpenStack cloud for tests: Keystone, Glance, RabbitMQ, MariaDB and Nova as released, on loopback.

What tests use: :func:`tests.openstack.ground.ground` has what all clouds stand on,
:func:`tests.openstack.cloud.cloud` is Nova with a Placement of one kind, and
:mod:`tests.openstack.scenario` is what users and operators do there.
"""
