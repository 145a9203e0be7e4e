"""Generate the page's types from the OpenAPI document: static/types.d.ts.

It has the types that the scripts name, `import("./types.js").Button`, and those inside them.

.venv/bin/python -m tools.page_declarations
"""

import json
import re
from pathlib import Path
from typing import Final

import msgspec

import midrun.server
from midrun.core.values import Json
from midrun.server.openapi import make_openapi

PAGE: Final = Path(midrun.server.__file__).parent / "static" / "types.d.ts"

_HEADER: Final = """\
/* The types of the server's JSON. `make docs` generates this file from the OpenAPI document.
 * Times are RFC 3339, durations are in seconds. */
"""
_PRIMITIVES: Final = {"integer": "number", "array": "any[]", "object": "Record<string, any>"}


WIRE_NAMES: Final = {"ref": "$ref", "any_of": "anyOf", "values": "additionalProperties"}


class Schema(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """The parts of a JSON Schema that our document uses."""

    ref: str = ""
    any_of: tuple["Schema", ...] = ()
    type: str = "any"
    const: Json = None
    enum: tuple[Json, ...] = ()
    items: "Schema | bool" = False
    values: "Schema | bool" = False
    properties: dict[str, "Schema"] = {}
    required: frozenset[str] = frozenset()
    description: str = ""


class Components(msgspec.Struct, frozen=True):
    """The schemas of a document by name."""

    schemas: dict[str, Schema]


class Document(msgspec.Struct, frozen=True):
    """The part of an OpenAPI document that is needed here."""

    components: Components


def generate() -> str:
    """Return the text of the file."""
    schemas = msgspec.json.decode(make_openapi(), type=Document).components.schemas
    scripts = "".join(script.read_text() for script in PAGE.parent.glob("*.js"))
    found: dict[str, str] = {}
    names = set(re.findall(r'import\("\./types\.js"\)\.(\w+)', scripts))
    while names:
        found |= {name: _declare(name, schemas[name]) for name in names}
        names = set(re.findall(r"\w+", "".join(found.values()))) & schemas.keys() - found.keys()
    return _HEADER + "".join(found[name] for name in sorted(found))


def _declare(name: str, schema: Schema) -> str:
    lines = [
        f"  {field}{'' if field in schema.required else '?'}: {_to_type(part)};\n"
        for field, part in schema.properties.items()
    ]
    first = schema.description.partition("\n")[0]
    if not lines:
        return f"\n/** {first} */\nexport type {name} = {_to_type(schema)};\n"
    return f"\n/** {first} */\nexport interface {name} {{\n{''.join(lines)}}}\n"


def _to_type(schema: Schema) -> str:
    """Return a schema as a TypeScript type; a schema that allows everything is `any`."""
    if schema.ref:
        return schema.ref.rpartition("/")[2]
    if schema.any_of:
        return " | ".join(dict.fromkeys(map(_to_type, schema.any_of)))
    if schema.enum or schema.const is not None:
        return " | ".join(map(json.dumps, schema.enum or (schema.const,)))
    if isinstance(schema.items, Schema):
        item = _to_type(schema.items)
        return f"({item})[]" if " " in item else f"{item}[]"
    if isinstance(schema.values, Schema):
        return f"Record<string, {_to_type(schema.values)}>"
    return _PRIMITIVES.get(schema.type, schema.type)


if __name__ == "__main__":
    PAGE.write_text(generate())
