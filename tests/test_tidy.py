"""Rules about the project's code and texts that no linter checks.

A rule about one module is a function from a syntax tree (or a text) to the places that break
the rule. The planted violations at the end prove that each rule still finds one.
"""

import ast
import gc
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final, TypeAlias

import pytest

import midrun
from tools.check_commit_subject import subject_fault

Rule: TypeAlias = Callable[[ast.Module], list[str]]

ROOT: Final = Path(__file__).parents[1]
SRC: Final = ROOT / "src" / "midrun"
CODE: Final = [
    path
    for folder in ("src", "tests", "tools", "bench")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "node_modules" not in path.parts  # packages of npm have scripts in Python, too
]
SHIPPED: Final = [path for path in CODE if path.is_relative_to(SRC)]
STORES: Final = [path for path in CODE if path.is_relative_to(SRC / "stores")]
SUITES: Final = [
    path
    for path in CODE
    if path.is_relative_to(ROOT / "tests") or path.is_relative_to(SRC / "testing")
]
DECISIONS: Final = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))

LINES_MAX: Final = 800
FUNCTION_LINES_MAX: Final = 60
PUBLIC_NAMES_MAX: Final = 35
SENTENCE_WORDS_MIN: Final = 3

SINGLE_IMPORTER_LINES_MIN: Final = 80

# Refused words that are terms of a protocol, by the folder that implements the protocol.
PROTOCOL_WORDS: Final = {
    "workers": {"workflow"},  # Temporal
}

# Texts name the component. A pronoun leaves open which process, thread or user is meant.
INDEFINITE_PEOPLE: Final = re.compile(
    r"\b(some|no|any|every)(body|one)\b|\bwho(so)?ever\b", re.IGNORECASE
)
HEADLESS_START: Final = re.compile(r"(What|Who|Whose|Whoever|How|That which)\b")

# Irregular participles; regular ones end in -ed. A word that is also the plain form of a verb
# (`read`, `set`, `put`, `run`, `let`, `cut`) is not listed.
IRREGULAR_PARTICIPLES: Final = frozenset(
    """
    begun bound brought built caught come done drawn driven fallen fed felt found given gone
    grown heard held kept known laid led left lost made meant met paid said seen sent shown
    sold sought spent spoken stood struck taken thought thrown told torn won worn written
    """.split()  # noqa: SIM905 - words are read more easily than a list of strings
)
NOUNS_IN_ED: Final = frozenset({"embed", "feed", "need", "seed", "speed"})

# -ing words that are nouns of the field, not actions of the module.
NOUNS_IN_ING: Final = frozenset({"mounting", "streaming", "testing"})

# Functions named by a participle, with the reason.
PARTICIPLES_ALLOWED: Final[Mapping[str, str]] = {
    "given": "begins a scenario: given, when, then",
    "opened": "a fixture of the suites that ship",
}

# Public class names that are defined in two modules, with the reason.
DEFINED_TWICE: Final[Mapping[str, str]] = {}

# Modules under 80 lines with one importer, with the reason.
SMALL_MODULES: Final[Mapping[str, str]] = {
    "midrun.demo.terminal": "needs the extra tui",
}

# Written in halves, so that this file does not break the rule itself.
REGISTRIES: Final = (
    "pypi" + ".org",
    "pythonhosted" + ".org",
    "registry" + ".npmjs",
    "registry" + ".yarnpkg",
    "deb" + ".debian",
    "anaconda" + ".org",
)
OUTSIDE: Final = (".." + "/shared", "/work" + "/shared", "/work" + "/main")

SQL: Final = re.compile(
    r"\s*(ALTER|ANALYZE|ATTACH|BEGIN|CREATE|DELETE|DROP|INSERT|LISTEN|NOTIFY|PRAGMA|REPLACE"
    r"|SAVEPOINT|SELECT|UPDATE|VACUUM|WITH)\s"
)


# ── rules about one module ───────────────────────────────────────────────────


def long_functions(tree: ast.Module) -> list[str]:
    """Return the functions that are longer than `FUNCTION_LINES_MAX` lines."""
    return [
        f"{node.name}, line {node.lineno}"
        for node in _functions(tree)
        if (node.end_lineno or node.lineno) - node.lineno >= FUNCTION_LINES_MAX
    ]


def refused_names(tree: ast.Module, words: set[str]) -> list[str]:
    """Return the classes and functions with one of `words` in their names."""
    named = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)] + _functions(tree)
    return [
        f"{node.name}, line {node.lineno}" for node in named if words & set(_words(node.name))
    ]


def foreign_code(tree: ast.Module) -> list[str]:
    """Return the places where data could run as code: pickle and similar, `eval`, `exec`."""
    kin = {"cloudpickle", "dill", "marshal", "pickle", "shelve"}
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names) if kin & {n.name.partition(".")[0] for n in names}:
                found.append(f"import, line {node.lineno}")
            case ast.ImportFrom(module=str(name)) if name.partition(".")[0] in kin:
                found.append(f"import, line {node.lineno}")
            case ast.Call(func=ast.Name(id="eval" | "exec" as name)):
                found.append(f"{name}, line {node.lineno}")
            case _:
                continue
    return found


def built_sql(tree: ast.Module) -> list[str]:
    """Return the places where SQL is built from something other than constants.

    Constants may be joined with `+` (`SELECT_RUNS + NEWEST_FIRST`); values are parameters.
    """
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _calls_execute(node):
            found += [arg for arg in node.args[:1] if _is_built(arg)]
        elif isinstance(node, ast.expr) and _is_built(node) and SQL.match(_literal_text(node)):
            found.append(node)
    return sorted({f"line {node.lineno}" for node in found})


def terse_tests(tree: ast.Module) -> list[str]:
    """Return the tests whose names are too short to be a sentence."""
    return [
        f"{node.name}, line {node.lineno}"
        for node in _functions(tree)
        if node.name.startswith("test_")
        and len(node.name.removeprefix("test_").split("_")) < SENTENCE_WORDS_MIN
    ]


def headless_docstrings(tree: ast.Module) -> list[str]:
    """Return the docstrings that start with a clause without a subject (What, Who, How)."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        f"{text.splitlines()[0]!r}"
        for node in ast.walk(tree)
        if isinstance(node, kinds)
        and (text := ast.get_docstring(node))
        and HEADLESS_START.match(text)
    ]


def participle_names(tree: ast.Module) -> list[str]:
    """Return the functions that are named by a participle alone, such as `told`."""
    return [
        f"{node.name}, line {node.lineno}"
        for node in _functions(tree)
        if _is_participle(node.name.lstrip("_"))
        and node.name not in PARTICIPLES_ALLOWED
        and not any(isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list)
    ]


def _is_participle(name: str) -> bool:
    regular = name.endswith("ed") and name not in NOUNS_IN_ED
    return "_" not in name and (regular or name in IRREGULAR_PARTICIPLES)


def people_in(text: str) -> list[str]:
    """Return the lines of a text that name an indefinite person, such as `nobody`."""
    return [
        f"line {number}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), 1)
        if INDEFINITE_PEOPLE.search(line)
    ]


def gerund_modules(names: Sequence[str]) -> list[str]:
    """Return the modules that are named for an action instead of a thing."""
    last = {name: name.rpartition(".")[2] for name in names}
    return [
        name for name, word in last.items() if word.endswith("ing") and word not in NOUNS_IN_ING
    ]


def repeated_classes(modules: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Return the public class names that more than one module defines."""
    homes: dict[str, list[str]] = {}
    for name, tree in modules.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name)
    return {name: places for name, places in homes.items() if len(places) > 1}


def small_modules(modules: Mapping[str, ast.Module], lines: Mapping[str, int]) -> list[str]:
    """Return the short modules with one importer; they belong into its file."""
    importers: dict[str, set[str]] = {}
    for name, tree in modules.items():
        for node in ast.walk(tree):
            for imported in _imported(node):
                importers.setdefault(imported, set()).add(name)
    return [
        name
        for name, length in lines.items()
        if length < SINGLE_IMPORTER_LINES_MIN and len(importers.get(name, ())) == 1
    ]


def _imported(node: ast.AST) -> list[str]:
    match node:
        case ast.ImportFrom(module=str(module), names=names):
            return [module, *(f"{module}.{each.name}" for each in names)]
        case ast.Import(names=names):
            return [each.name for each in names]
        case _:
            return []


def _functions(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def _words(name: str) -> list[str]:
    return (
        re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_", " ", name).lower().split()
    )


def _calls_execute(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name.startswith("execute") or name in {"fetch", "fetchrow", "fetchval"}
        case _:
            return False


def _is_built(node: ast.expr) -> bool:
    match node:
        case ast.JoinedStr(values=parts):
            return any(isinstance(part, ast.FormattedValue) for part in parts)
        case ast.BinOp(left=left, op=ast.Mod()):
            return bool(_literal_text(left))
        case ast.BinOp(op=ast.Add()):
            return bool(_literal_text(node)) and not all(map(_is_constant, _terms(node)))
        case ast.Call(func=ast.Attribute(attr="format" | "format_map" | "replace")):
            return True
        case _:
            return False


def _terms(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from (*_terms(node.left), *_terms(node.right))
    else:
        yield node


def _is_constant(node: ast.expr) -> bool:
    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.isupper()
        case _:
            return False


def _literal_text(node: ast.expr) -> str:
    found = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
    return next((text for text in found if isinstance(text, str)), "")


def _refused(kind: str) -> set[str]:
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    row = re.search(rf"^- {kind}: (.+)$", glossary, re.MULTILINE)
    assert row, f"docs/glossary.md has no list of words refused for {kind}"
    return set(re.findall(r"`(\w+)`", row[1]))


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def _tree(path: Path) -> ast.Module:
    tree = ast.parse(path.read_text(), filename=str(path))
    gc.freeze()  # or each full collection would visit the millions of nodes of all trees
    return tree


def _found(rule: Callable[[Path], object], paths: Sequence[Path]) -> dict[str, object]:
    """Return the findings of a rule by file: one test for all files is faster than one each."""
    return {_name(path): places for path in paths if (places := rule(path))}


# ── every module ─────────────────────────────────────────────────────────────


def test_a_module_fits_in_one_sitting() -> None:
    """A module is read from top to bottom; a longer one should be two modules."""
    assert not _found(lambda path: len(path.read_text().splitlines()) > LINES_MAX, CODE)


def test_a_module_has_a_docstring() -> None:
    """The first line of the docstring gives the purpose of the module."""
    assert not _found(lambda path: not ast.get_docstring(_tree(path)), CODE)


def test_a_function_fits_on_a_screen() -> None:
    """A function that needs scrolling is hard to review."""
    assert not _found(lambda path: long_functions(_tree(path)), CODE)


def test_names_speak_the_glossary() -> None:
    """One word per concept: a reader takes a synonym for a second concept."""
    refused = _refused("classes and functions")

    def synonyms(path: Path) -> list[str]:
        folder = path.relative_to(SRC).parts[0]
        return refused_names(_tree(path), refused - PROTOCOL_WORDS.get(folder, set()))

    assert not _found(synonyms, SHIPPED)


def test_the_names_of_files_are_specific() -> None:
    """A name such as `utils` fits any code, so such a module collects unrelated code."""
    refused = _refused("files and folders")

    def empty_words(path: Path) -> set[str]:
        inside = path.relative_to(ROOT).with_suffix("").parts
        return {word for part in inside for word in _words(part)} & refused

    assert not _found(empty_words, CODE)


def test_stored_data_never_becomes_code() -> None:
    """A checkpoint comes from outside; unpickling it would run its author's code."""
    assert not _found(lambda path: foreign_code(_tree(path)), SHIPPED)


def test_sql_is_never_put_together_from_values() -> None:
    """Values are parameters. SQL built from safe text may get an unsafe caller later."""
    assert not _found(lambda path: built_sql(_tree(path)), STORES)


# ── plain English ────────────────────────────────────────────────────────────


def _modules() -> dict[str, ast.Module]:
    """Return the shipped modules by dotted name, packages' `__init__` excepted."""
    return {
        ".".join(path.relative_to(SRC.parent).with_suffix("").parts): _tree(path)
        for path in SHIPPED
        if path.stem not in {"__init__", "__main__"}
    }


def test_texts_name_the_component_and_no_indefinite_person() -> None:
    """A reader must know which process, caller or user a sentence is about."""
    scripts = [
        p for p in (SRC / "server" / "static").glob("*.js") if not p.name.startswith("lit")
    ]
    # The demo's scripted agent speaks as people do; the suites use such words as wrong names.
    spoken = {SRC / "demo", SRC / "testing"}
    modules = [path for path in SHIPPED if not spoken.intersection(path.parents)]
    assert not _found(lambda path: people_in(path.read_text()), [*modules, *scripts])


def test_docstrings_start_with_a_verb_or_a_noun() -> None:
    """A first line that starts with What, Who or How names no subject."""
    assert not _found(lambda path: headless_docstrings(_tree(path)), SHIPPED)


def test_functions_are_named_by_a_verb_and_its_object() -> None:
    """`told` names neither an action nor its object; `format_receipt` names both."""
    assert not _found(lambda path: participle_names(_tree(path)), SHIPPED)


def test_modules_are_named_by_nouns() -> None:
    """A module is named for the thing that it holds."""
    assert not gerund_modules(list(_modules()))


def test_a_public_class_name_is_defined_once() -> None:
    """An import line, a traceback and a search must lead to one class."""
    assert repeated_classes(_modules()).keys() == DEFINED_TWICE.keys()


def test_a_small_module_has_more_than_one_importer() -> None:
    """A short module with one importer is one more file to open."""
    lines = {
        name: (tree.body[-1].end_lineno or 0) if tree.body else 0
        for name, tree in _modules().items()
        if not name.startswith("midrun.testing.")
    }
    assert set(small_modules(_modules(), lines)) == SMALL_MODULES.keys()


def test_names_of_tests_are_sentences() -> None:
    """The list of failed tests is read first; each name should say what is broken."""
    assert not _found(lambda path: terse_tests(_tree(path)), SUITES)


# ── the public surface ───────────────────────────────────────────────────────


def test_public_names_are_complete_sorted_and_few() -> None:
    """`__all__` is the public API; no name may enter or leave it by accident."""

    def shape(name: str) -> tuple[int, str]:  # the order that ruff sorts `__all__` in
        return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)

    names = midrun.__all__
    seen = {
        name
        for name, value in vars(midrun).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert names == sorted(set(names), key=shape)
    assert seen <= set(names), "public by name, but missing from __all__"
    assert [name for name in names if not hasattr(midrun, name)] == []
    assert len(names) <= PUBLIC_NAMES_MAX


# ── the repository ───────────────────────────────────────────────────────────


def _list_repository_files() -> Iterator[Path]:
    """Yield every file that is, or is about to be, under version control."""
    git = shutil.which("git")
    assert git, "git is needed to know which files belong to the project"
    listing = [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True).stdout  # noqa: S603 - fixed arguments
    for name in names.decode().split("\0"):
        if name and (ROOT / name).is_file():
            yield ROOT / name


def _texts() -> Iterator[tuple[str, str]]:
    """Yield name and text of every file of the repository that is a text."""
    for path in _list_repository_files():
        if b"\0" not in (data := path.read_bytes()):
            yield str(path.relative_to(ROOT)), data.decode(errors="replace")


def test_binary_files_are_pictures() -> None:
    """A package that a check has downloaded must not be committed: each clone would have it."""
    found = {
        path.suffix for path in _list_repository_files() if b"\0" in path.read_bytes()[:8_000]
    }
    assert found <= {".png", ".webp"}


@pytest.mark.parametrize(
    ("needles", "reason"),
    [
        (REGISTRIES, "the package index is set in the pip configuration of the machine"),
        (OUTSIDE, "a fresh clone has no such folder beside it"),
    ],
    ids=["registry hosts", "paths outside"],
)
def test_no_file_names_a_place_outside(needles: tuple[str, ...], reason: str) -> None:
    """A clone must work behind any mirror and in any folder."""
    files = list(_texts())
    assert len(files) > len(CODE), "the listing is too short to be the project"
    found = [name for name, text in files if any(needle in text for needle in needles)]
    assert not found, reason


def test_decisions_are_numbered_without_gaps() -> None:
    """The number of an ADR never changes; two branches may have chosen the same number."""
    assert [path.name[:5] for path in DECISIONS] == [
        f"{n:04}-" for n in range(1, len(DECISIONS) + 1)
    ]
    assert DECISIONS


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: str(path.stem))
def test_a_decision_has_the_house_shape(path: Path) -> None:
    """A decision needs its costs and the signs of an error, so that it can be reopened."""
    text = path.read_text()
    assert text.startswith(f"# ADR {path.name[:4]}: ")
    assert re.search(
        r"\nStatus: (proposed|accepted|superseded by \d{4}) · \d{4}-\d\d-\d\d ·", text
    )
    assert re.findall(r"\n## (.+)", text) == [
        "The question",
        "Decision",
        "Why",
        "Costs",
        "Rejected alternatives",
        "Signs that it was wrong",
    ]
    assert f"({path.name})" in (path.parent / "README.md").read_text(), "not in the list"


def test_fragments_are_of_a_known_kind() -> None:
    """A release silently ignores a misspelt kind, and the change is never announced."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    kinds = "|".join(kind["directory"] for kind in config["tool"]["towncrier"]["type"])
    names = [p.name for p in (ROOT / "changelog.d").iterdir() if p.name != "README.md"]
    assert [n for n in names if not re.fullmatch(rf"[^.]+\.({kinds})(\.\d+)?\.md", n)] == []


def test_the_pins_cover_the_dependencies_of_the_package() -> None:
    """A dependency without a pin is missing from every environment that `make` builds."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pinned = (ROOT / "requirements" / "dev.in").read_text().splitlines()
    assert set(config["project"]["dependencies"]) <= set(pinned)


# ── planted violations: each rule must find the first, and pass the second ───


@pytest.mark.parametrize(
    ("rule", "bad", "good"),
    [
        (long_functions, "def f():\n" + "    x\n" * 60, "def f():\n" + "    x\n" * 59),
        (long_functions, "async def f():\n" + "    x\n" * 60, "async def f(): ..."),
        (foreign_code, "import pickle", "import json"),
        (foreign_code, "import os, pickle as p", "import pickletools"),
        (foreign_code, "from shelve import open", "from msgspec import json"),
        (foreign_code, "eval(text)", "model.eval()"),
        (foreign_code, "exec(text)", "create_subprocess_exec(text)"),
        (built_sql, "db.execute(f'… {x}')", "db.execute('SELECT ?', (x,))"),
        (built_sql, "db.execute('… %s' % x)", "db.execute('SELECT 7 % 2')"),
        (built_sql, "db.execute('… {}'.format(x))", "log('{}'.format(x))"),
        (built_sql, "db.executemany('… ' + x, rows)", "db.execute(SELECT + ' LIMIT 1')"),
        (built_sql, "q = f'SELECT {x}'", "q = f'selected {x}'"),
        (built_sql, "q = 'DELETE FROM ' + x", "q = 'DELETE FROM runs ' + WHERE"),
        (headless_docstrings, "'What is so.'", "'Return the state.'"),
        (headless_docstrings, "def f():\n 'Who waits.'", "def f():\n 'Whole lines.'"),
        (participle_names, "def _told(): ...", "def tell_caller(): ..."),
        (participle_names, "async def closed(): ...", "@property\ndef closed(self): ..."),
        (participle_names, "class A:\n def kept(self): ...", "def feed(): ..."),
        (terse_tests, "def test_pause(): ...", "def test_pause_stops_the_run(): ..."),
        (terse_tests, "class T:\n async def test_two_words(self): ...", "def testing(): ..."),
    ],
)
def test_each_rule_finds_a_planted_fault(rule: Rule, bad: str, good: str) -> None:
    """A rule that finds nothing would go unnoticed, so each one is tested with a violation."""
    assert rule(ast.parse(bad))
    assert not rule(ast.parse(good))


def test_the_rules_about_texts_and_modules_find_a_planted_violation() -> None:
    """These rules take a text or several modules instead of one syntax tree."""
    assert people_in("# Somebody appended first.")
    assert people_in("Whoever comes late")
    assert not people_in("Another writer appended first. No one of them waits.")
    assert gerund_modules(["midrun.driver.speaking"]) == ["midrun.driver.speaking"]
    assert not gerund_modules(["midrun.testing", "midrun.models.messages", "midrun.core.ids"])
    twice = {"a": ast.parse("class A: ...\nclass _B: ..."), "b": ast.parse("class A: ...")}
    assert repeated_classes(twice) == {"A": ["a", "b"]}
    one = {"a": ast.parse("from b import c"), "b": ast.parse(""), "c": ast.parse("import d")}
    assert small_modules(one, {"b": 79, "d": 80}) == ["b"]
    assert not small_modules(one | {"c": ast.parse("import b")}, {"b": 79, "d": 80})


@pytest.mark.parametrize(
    "name", ["JobStore", "RunManager", "saga_step", "HTTPWorkflow", "_utils"]
)
def test_refused_words_are_found_inside_names(name: str) -> None:
    """A refused word is found in camel case, in snake case and after an acronym."""
    words = _refused("classes and functions")
    assert refused_names(ast.parse(f"class {name}: ..."), words)
    assert refused_names(ast.parse(f"async def {name}(): ..."), words)
    assert not refused_names(ast.parse("def checkpoint_task(): ...\nclass Jobless: ..."), words)


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("Retry an append on conflict\n\nThe body says why.\n", None),
        ("# a comment of Git\nRetry an append\n", None),
        ("x" * 72, None),
        ("x" * 73, "73 characters"),
        ("Retry an append.", "ends with a period"),
        ("Retry an append\nat once", "the line after the subject"),
        ("\n", "the subject is empty"),
    ],
)
def test_the_commit_hook_refuses_a_long_subject(message: str, fault: str | None) -> None:
    """Lists of commits show a subject of up to 72 characters in full."""
    found = subject_fault(message)
    assert (fault in found) if fault and found else fault is found


def test_programs_of_crash_tests_start_without_pytest() -> None:
    """Crash tests start hundreds of them; pytest would add half of their start."""
    programs = ["tests.crash.child", "tests.scenarios.conversation.killed_process"]
    programs += [f"tests.scenarios.promises.{name}_process" for name in ("killable", "other")]
    check = f"import sys, {', '.join(programs)}; print('_pytest' in sys.modules)"
    done = subprocess.run(  # noqa: S603 - fixed arguments
        [sys.executable, "-c", check], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout == "False\n"
