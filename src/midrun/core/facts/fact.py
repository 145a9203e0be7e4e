"""What every entry has in common."""

from typing import dataclass_transform

from msgspec import Struct, field


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Fact(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag=True,
    tag_field="kind",
    forbid_unknown_fields=True,
    gc=False,  # as values: there is nothing to collect
):
    """Base of every entry."""


class Asked(Fact, kw_only=True):
    """Base of what a person, or the system in their place, asked for."""

    by: str = ""
    role: str = ""
    request: str = ""  # the request id, if the sender gave one
    digest: str = ""  # of what was asked, so that a reused id is noticed
    reason: str = ""
