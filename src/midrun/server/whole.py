"""Whole numbers: to JSON, and so to a description in JSON Schema, 5.0 is the integer 5.

We tell them apart, because what a user's data says is kept as it was said. Where a body wants
an integer of its own, whoever writes one with a point has it all the same.
"""

from functools import cache

from msgspec import Struct
from msgspec import inspect as info


def whole(data: object, kind: type[Struct]) -> object:
    """Return `data`, which is to become a `kind`, with its integers written as such."""
    return _whole(data, _type(kind))


@cache
def _type(kind: type[Struct]) -> info.Type:
    return info.type_info(kind)


def _whole(data: object, kind: info.Type) -> object:
    match kind, data:
        case info.IntType(), float() if data.is_integer():
            return int(data)
        case info.UnionType(), _:
            for one in kind.types:
                data = _whole(data, one)
        case info.StructType(), dict() if _is(data, kind):
            fields = {field.encode_name: field.type for field in kind.fields}
            known = data.keys() & fields.keys()
            return data | {name: _whole(data[name], fields[name]) for name in known}
        case info.VarTupleType(), list():
            return [_whole(item, kind.item_type) for item in data]
        case _:
            pass
    return data


def _is(data: dict[object, object], kind: info.StructType) -> bool:
    """Tell whether `data` says that it is of this kind, or need not say so."""
    return kind.tag_field is None or data.get(kind.tag_field) == kind.tag
