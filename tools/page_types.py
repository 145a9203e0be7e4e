"""Generate the page's types from the OpenAPI document: static/types.d.ts.

It has the types that the scripts name, `import("./types.js").Button`, and those inside them.

.venv/bin/python -m tools.page_types
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import midrun.server
from midrun.server.openapi import make_openapi

PAGE: Final = Path(midrun.server.__file__).parent / "static" / "types.d.ts"

_HEADER: Final = """\
/* The types of the server's JSON. `make docs` generates this file from the OpenAPI document.
 * Times are RFC 3339, durations are in seconds. */
"""
_PRIMITIVES: Final = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
}


def generate() -> str:
    """Return the text of the file."""
    schemas = json.loads(make_openapi())["components"]["schemas"]
    scripts = "".join(script.read_text() for script in PAGE.parent.glob("*.js"))
    found: set[str] = set()
    names = set(re.findall(r'import\("\./types\.js"\)\.(\w+)', scripts))
    while names:
        found |= names
        inner = json.dumps([schemas[name] for name in names])
        names = set(re.findall(r'"#/components/schemas/(\w+)"', inner)) - found
    return _HEADER + "".join(_declare(name, schemas[name]) for name in sorted(found))


def _declare(name: str, schema: Mapping[str, Any]) -> str:
    if "properties" not in schema:
        return f"\nexport type {name} = {_to_type(schema)};\n"
    required = set(schema.get("required", ()))
    lines = [
        f"  {field}{'' if field in required else '?'}: {_to_type(part)};"
        for field, part in schema["properties"].items()
    ]
    first = schema.get("description", "").partition("\n")[0]
    comment = f"/** {first} */\n" if first else ""
    return f"\n{comment}export interface {name} {{\n" + "\n".join(lines) + "\n}\n"


def _to_type(schema: Mapping[str, Any]) -> str:
    """Return a schema as a TypeScript type; a schema that allows everything is `any`."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " | ".join(dict.fromkeys(map(_to_type, schema[key])))
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " | ".join(map(json.dumps, schema["enum"]))
    return _to_container(schema) or _PRIMITIVES.get(schema.get("type", ""), "any")


def _to_container(schema: Mapping[str, Any]) -> str:
    if schema.get("type") == "array":
        item = _to_type(schema.get("items") or {})
        return f"({item})[]" if " " in item else f"{item}[]"
    if schema.get("type") == "object":
        return f"Record<string, {_to_type(schema.get('additionalProperties') or {})}>"
    return ""


if __name__ == "__main__":
    PAGE.write_text(generate())
