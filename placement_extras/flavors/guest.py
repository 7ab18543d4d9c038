"""A flavor and its image together: what both say of one thing."""

from collections.abc import Iterator
from dataclasses import dataclass

from placement.exceptions import InvalidRequest
from placement_extras.flavors import properties
from placement_extras.flavors.flavor import NovaFlavor, refused
from placement_extras.flavors.properties import TypedProperties, flag
from placement_extras.flavors.property_types import CHOICES


@dataclass(frozen=True, slots=True)
class FlavorGuest:
    """What is to be translated: the size, and the extra specs and properties by name."""

    flavor: NovaFlavor
    specs: dict[str, str]
    image: TypedProperties

    @classmethod
    def of(cls, flavor: NovaFlavor) -> "FlavorGuest":
        """The guest of a flavor that boots its image.

        :raises InvalidRequest: the image has properties that cannot be.
        """
        return cls(flavor, dict(flavor.extra_specs), properties.read(flavor.image.properties))

    def texts(self, name: str, prefix: str = "hw") -> tuple[str | None, str | None]:
        """What the flavor and what the image says of a thing; None where one says nothing."""
        return self.specs.get(f"{prefix}:{name}"), self.image.texts.get(f"{prefix}_{name}")

    def agreed(self, name: str, prefix: str = "hw") -> str | None:
        """What they say of a thing, if it is the same or one of them says nothing.

        :raises InvalidRequest: they contradict each other.
        """
        flavor, image = self.texts(name, prefix)
        if flavor and image and flavor != image:
            raise contradiction(prefix, name, flavor, image)
        return flavor or image

    def choice(self, name: str, prefix: str = "hw") -> str | None:
        """What they agree on, of a thing that is one of some.

        :raises InvalidRequest: it is none of them, or they contradict each other.
        """
        value = self.agreed(name, prefix)
        check_known(prefix, name, value)
        return value

    def flags(self, name: str) -> tuple[bool | None, bool | None]:
        """Whether the flavor and whether the image wants a thing; None where one says nothing."""
        spec = self.specs.get(f"hw:{name}")
        return None if spec is None else flag(spec), self.image.flags.get(f"hw_{name}")

    def agreed_flag(self, name: str) -> bool | None:
        """Whether they want a thing; None if none of them says anything.

        :raises InvalidRequest: they contradict each other.
        """
        flavor, image = self.flags(name)
        if flavor is not None and image is not None and flavor != image:
            raise contradiction("hw", name, self.specs[f"hw:{name}"], "yes" if image else "no")
        return image if flavor is None else flavor

    def number(self, name: str) -> tuple[int, int]:
        """How many the flavor and how many the image wants; 0 where one says nothing.

        :raises InvalidRequest: the flavor's is no number.
        """
        spec = self.specs.get(f"hw:{name}", "0")
        try:
            return int(spec), self.image.numbers.get(f"hw_{name}", 0)
        except ValueError:
            raise refused(f"the extra spec hw:{name} cannot be {spec!r}") from None

    def suffixed(self, kind: str) -> Iterator[tuple[str, str]]:
        """Extra specs without a suffix or with a number for one: what is behind the colon, and the value."""
        for name, value in self.specs.items():
            before, colon, after = name.partition(":")
            suffix = before.removeprefix(kind)
            if before.startswith(kind) and colon and _is_number(suffix):
                yield after, value


def _is_number(suffix: str) -> bool:
    return suffix == "" or (suffix.isascii() and suffix.isdigit() and not suffix.startswith("0"))


def check_known(prefix: str, name: str, value: str | None) -> None:
    """Make sure that it is one of the values that the image property of the same name may have.

    :raises InvalidRequest: it is none.
    """
    known = CHOICES[f"{prefix}_{name}"].values
    if value and value not in known:
        raise refused(f"{prefix}:{name} cannot be {value!r}, only one of {', '.join(sorted(known))}")


def contradiction(prefix: str, name: str, flavor: str, image: str) -> InvalidRequest:
    """The error of a flavor and an image that want different things."""
    return refused(f"{prefix}:{name} of the flavor is {flavor!r}, {prefix}_{name} of the image {image!r}")
