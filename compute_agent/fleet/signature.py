"""Keys and signatures of revisions: Ed25519 (RFC 8032).

The module is separate because it needs the package cryptography, which is optional.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from compute_agent.fleet import revision
from compute_agent.fleet.revision import MAX_BYTES, FleetError, FleetRevision

_FIRST_LINE: Final = b"# compute-agent fleet revision 1, signed: "
# The signature covers this text, too, so a signature made for another purpose never fits a revision.
_PURPOSE: Final = b"compute-agent fleet revision 1\n"


def new_key() -> bytes:
    """A new private key in PEM format, without a password."""
    key = Ed25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def public_key(private: bytes) -> str:
    """The public key that belongs to a private key, as 44 characters of base64 for ``[fleet] public_keys``.

    :raises FleetError: the private key is wrong.
    """
    return base64.b64encode(_load_private_key(private).public_key().public_bytes_raw()).decode()


def sign_revision(signed: bytes, private: bytes) -> bytes:
    """Sign a revision, and return the content of its file.

    :param signed: the result of :func:`revision.write`.
    :raises FleetError: the file is too large, or the key is wrong.
    """
    signature = base64.b64encode(_load_private_key(private).sign(_PURPOSE + signed))
    content = _FIRST_LINE + signature + b"\n" + signed
    if len(content) > MAX_BYTES:
        raise FleetError(f"it has {len(content)} bytes, and hosts accept at most {MAX_BYTES}")
    return content


def read(content: bytes, public_keys: Sequence[str]) -> FleetRevision:
    """Verify the signature of a file, and parse the revision in it.

    :param public_keys: the trusted keys. One of them must have made the signature.
    :raises FleetError: the file is not a revision, no key has signed it, or a key is wrong.
    """
    if len(content) > MAX_BYTES:
        raise FleetError(f"the settings are larger than {MAX_BYTES} bytes")
    first, _, signed = content.partition(b"\n")
    if not first.startswith(_FIRST_LINE):
        raise FleetError("it does not begin like a revision; `compute-agent fleet sign` makes one")
    # All keys are parsed first: a malformed key in the options is an error even if another key fits.
    keys = [_load_public_key(each) for each in public_keys]
    try:
        signature = base64.b64decode(first.removeprefix(_FIRST_LINE), validate=True)
    except binascii.Error as error:
        raise FleetError(f"its signature is invalid: {error}") from error
    if not any(_has_signed(key, signature, _PURPOSE + signed) for key in keys):
        raise FleetError("none of [fleet] public_keys has signed this content")
    return revision.read(signed)


def _has_signed(key: Ed25519PublicKey, signature: bytes, signed: bytes) -> bool:
    try:
        key.verify(signature, signed)
    except InvalidSignature:
        return False
    return True


def _load_private_key(pem: bytes) -> Ed25519PrivateKey:
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise FleetError(f"the private key cannot be used: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise FleetError("the private key is not an Ed25519 key; `compute-agent fleet key` makes one")
    return key


def _load_public_key(text: str) -> Ed25519PublicKey:
    try:
        return Ed25519PublicKey.from_public_bytes(base64.b64decode(text, validate=True))
    except ValueError as error:
        raise FleetError(
            f"[fleet] public_keys: {text!r} is not a public key in the format of `compute-agent fleet key`"
        ) from error
