"""Options about Keystone in the configurations of the cloud's services, with their users."""

from typing import Final

from tests.keystone import REGION, Caller, Keystone

NOVA: Final = Caller("nova", "service", "service")
GLANCE: Final = Caller("glance", "service", "service")
AGENT: Final = Caller("compute-agent", "service", "service")
LAB: Final = Caller("a-lab-admin", "admin", "lab")
"""The user of the project that a rule of guests is about."""


def credentials(keystone: Keystone, caller: Caller) -> str:
    """Return the options with which the caller gets tokens."""
    return (
        f"auth_type = password\nauth_url = {keystone.url}\n"
        f"username = {caller.name}\npassword = {caller.password}\nproject_name = {caller.project}\n"
        f"user_domain_name = Default\nproject_domain_name = Default\nregion_name = {REGION}\n"
    )


def authtoken(keystone: Keystone, caller: Caller, kind: str) -> str:
    """Return the section with which a service validates tokens."""
    return (
        f"[keystone_authtoken]\nwww_authenticate_uri = {keystone.url}\nservice_type = {kind}\n"
        f"service_token_roles_required = true\nhttp_connect_timeout = 60\n{credentials(keystone, caller)}"
    )
