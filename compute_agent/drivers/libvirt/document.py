"""The XML that libvirt shows of a domain, parsed.

What is in its ``<metadata>`` anybody may have written who may define domains, and libvirt hands it on as it
is.
"""

from __future__ import annotations

import functools
from typing import Final
from xml.etree import ElementTree

_MAX_LENGTH: Final = 8 << 20
"""Characters; twice what libvirt's protocol lets through."""


@functools.lru_cache(maxsize=2)  # several ask the same text of a domain, and of its definition, in turn
def parse(domain_xml: str) -> ElementTree.Element:
    """The root element, which nobody changes.

    :raises ValueError: that is not XML, or not as libvirt writes it: a document type could define entities
        that fill the memory.
    """
    if len(domain_xml) > _MAX_LENGTH:
        raise ValueError(f"XML of {len(domain_xml)} characters")
    if "<!DOCTYPE" in domain_xml.partition("<domain")[0]:
        raise ValueError("XML with a document type")
    try:
        return ElementTree.fromstring(domain_xml)
    except ElementTree.ParseError as error:
        raise ValueError(f"not XML: {error}") from error
