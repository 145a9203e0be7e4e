"""The generated pages and the list of errors agree with the code."""

import pkgutil
import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path

from midrun import errors
from tools import host_table
from tools.draw_journals import CONCEPTS, draw_pictures
from tools.draw_phases import picture
from tools.draw_table import PAGE, PICTURE
from tools.draw_table import page as drawn
from tools.page_declarations import PAGE as PAGE_TYPES
from tools.page_declarations import generate


def test_the_page_of_phases_is_generated_from_the_current_table() -> None:
    assert PAGE.read_text() == drawn(), "run `make docs`"
    assert PICTURE.read_text() == picture(), "run `make docs`"


def test_the_pictures_of_journals_are_drawn_by_the_current_code() -> None:
    for name, drawing in draw_pictures().items():
        assert (CONCEPTS / f"{name}.svg").read_text() == drawing, "run `make docs`"


def test_the_types_of_the_page_are_generated_from_the_current_openapi_document() -> None:
    assert PAGE_TYPES.read_text() == generate(), "run `make docs`"


def test_the_table_of_hosts_has_every_host_and_every_promise() -> None:
    """CI runs the suites. A cell is "yes", or has the reason why the test is skipped."""
    text = host_table.PAGE.read_text()
    results = host_table.read_results(text)
    hosts = host_table.find_hosts()
    problem = "run `python -m tools.host_table`"
    assert text == host_table.make_page(hosts, results), problem
    skipped = {
        (promise, host_table.get_heading(host))
        for host in hosts
        for name, promise in host_table.list_promises().items()
        if any(mark.name == "skip" for mark in getattr(getattr(host, name), "pytestmark", ()))
    }
    assert {cell for cell, result in results.items() if result != "yes"} == skipped, problem


def test_every_error_has_a_heading_on_its_page() -> None:
    """A user can look up the meaning of an error, and its remedy."""
    page = Path("docs/errors.md").read_text()
    headings = set(re.findall(r"^### `(\w+)`$", page, re.MULTILINE))
    assert headings == {
        kind.code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.MidrunError)
    }


PUBLIC_MODULES = ("", ".models", ".stops", ".events", ".server", ".hosts", ".followers")


def test_the_reference_has_every_public_name() -> None:
    """If a module and a function have one name, as `midrun.server.app`, `:::` is the module."""
    pages = "".join(page.read_text() for page in Path("docs/reference").glob("*.md"))
    paths = re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE)
    modules = [import_module(f"midrun{name}") for name in PUBLIC_MODULES]
    for module in modules:
        if module.__name__ in paths:
            paths += [f"{module.__name__}.{name}" for name in module.__all__]
    shown = [sys.modules.get(path) or pkgutil.resolve_name(path) for path in paths]
    for module in modules:
        for name in module.__all__:
            public = getattr(module, name)
            is_error = f"`{name}`" in Path("docs/errors.md").read_text()
            is_shown = any(public is found for found in shown)
            assert is_error or is_shown, f"{module.__name__}.{name}"


def test_the_site_has_the_version_of_the_package() -> None:
    """Its one source is pyproject.toml."""
    version = tomllib.loads(Path("pyproject.toml").read_text())["project"]["version"]
    assert f"Version {version}" in Path("docs/index.md").read_text()
    assert f"copyright: Midrun {version}," in Path("mkdocs.yml").read_text()


def test_the_picture_of_the_layers_is_the_import_contract() -> None:
    """`make imports` checks the contract, people read the picture."""
    contracts = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (one["layers"] for one in contracts["contracts"] if one["id"] == "layers")
    picture = Path("ARCHITECTURE.md").read_text().partition("```text\n")[2].partition("```")[0]
    assert [re.split(r"\s{2,}", line)[0] for line in picture.splitlines()] == layers
