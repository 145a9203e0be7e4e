"""Settings of a command: from its options, the environment and a file, in this order.

Every option of `serve` and `worker` is a setting. `--allow-host` is `MIDRUN_ALLOW_HOST` in the
environment and `allow_host` in the file. The first of the three that has it decides, also for a
list: lists are never joined. In the file, the tables `[serve]` and `[worker]` are for one
command each, and decide before the keys above them. Other commands take only the settings that
find their store or server.

A secret is never in the file and never on the command line: the first may be committed, and all
users of the machine can read the second. It is in a variable (`MIDRUN_TOKEN`) or in a file of
its own (`--token-file`, `MIDRUN_TOKEN_FILE`, `token_file`).
"""

import os
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, TypedDict, TypeGuard

from msgspec import Struct

from midrun.cli.command_specs import (
    COMMANDS,
    SERVICES,
    TARGET_OPTIONS,
    UNSET_OPTIONS,
    USERS_FILE_OPTION,
)
from midrun.errors import Misconfigured
from midrun.runs.control_specs import CommandArgument

SETTINGS_PREFIX: Final = "MIDRUN_"
DEFAULT_STORE: Final = "sqlite:///midrun.db"

SECRET_NAMES: Final = (
    "token",
    "key",
    "chain_key",
    "encryption_keys",
    "webhook_secret",
    "metrics_token",
    "oidc_client_secret",
    "session_key",
)
"""Settings that are secrets. The setting `<name>_file` names a file that holds one."""

TRUE_WORDS: Final = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS: Final = frozenset({"0", "false", "no", "off"})

FLAG_RANK: Final = 3
ENVIRONMENT_RANK: Final = 2
FILE_RANK: Final = 1
DEFAULT_RANK: Final = 0


class ResolvedSetting(Struct, frozen=True):
    """A setting with its value. A source of a higher rank replaces one of a lower rank."""

    name: str
    value: object
    source: str
    rank: int


class Keys(TypedDict):
    """The keys that a `Midrun` takes."""

    key: bytes | None
    chain_key: bytes | None
    encryption_keys: tuple[bytes, ...]


def resolve_settings(args: Namespace) -> None:
    """Fill in options that were not typed, from the environment, the file or by default.

    All variables `MIDRUN_*` are removed from the environment of this process before the app is
    imported: some are credentials, and tools that run in this process can read the environment.

    Raises:
        Misconfigured: both a store and a server were given; a setting is unknown or has no
            valid value; or a file cannot be read.
    """
    names = [name for name in os.environ if name.startswith(SETTINGS_PREFIX)]
    environment = {name: os.environ.pop(name) for name in names}
    if not hasattr(args, "store"):  # a command without a store or server
        if hasattr(args, "users_file"):
            found = SettingSources(args, environment).find(USERS_FILE_OPTION)
            args.users_file = found.value
        return
    url = getattr(args, "url", None)
    if url and args.store:
        raise Misconfigured("--store and --url", "cannot be combined; give one of them")
    # Hints repeat only an address that was typed: one from the environment applies again.
    typed = {"--url": url, "--store": args.store, "--config": getattr(args, "config", None)}
    args.where = next(((option, each) for option, each in typed.items() if each), ())
    sources = SettingSources(args, environment)
    settings = {setting.name: setting for setting in sources.resolve()}
    for name, setting in settings.items():
        setattr(args, name, setting.value)
    _choose_target(args, settings)
    args.webhook_secret = settings["webhook_secret"].value
    args.keys = Keys(
        key=str(settings["key"].value).encode() or None,
        chain_key=str(settings["chain_key"].value).encode() or None,
        encryption_keys=_parse_encryption_keys(settings["encryption_keys"]),
    )
    args.unknown_variables = sources.list_unknown_variables()
    args.settings = tuple(settings.values())


def _parse_encryption_keys(setting: ResolvedSetting) -> tuple[bytes, ...]:
    if not setting.value:
        return ()
    from midrun.stores.encryption import parse_keys  # noqa: PLC0415 - rarely used, and slow

    # In a variable, a comma separates the keys: a line break is hard to write there.
    return parse_keys(str(setting.value).replace(",", "\n"))


def _choose_target(args: Namespace, settings: Mapping[str, ResolvedSetting]) -> None:
    """Choose between store and server by the rank of their sources; the server wins a tie."""
    if "token" in settings:
        args.token = args.token or None
    server = settings.get("url")
    if server is not None and server.rank < settings["store"].rank:
        args.url = None
    if not getattr(args, "url", None):
        args.actor = args.actor or os.environ.get("USER") or "user"
    elif settings["actor"].rank < FLAG_RANK:
        args.actor = None  # a server takes the actor from the token


class SettingSources:
    """The options of one command, its environment, and the configuration file."""

    def __init__(self, args: Namespace, environment: Mapping[str, str]) -> None:
        self._args = args
        self._environment = environment
        command = getattr(args, "command", "")
        # `midrun users` changes the file that the server reads.
        self.service = "serve" if command == "users" else getattr(args, "service", command)
        path = ""
        if hasattr(args, "config"):
            path = args.config or environment.get(f"{SETTINGS_PREFIX}CONFIG", "")
        self._file = ConfigFile(path)

    def resolve(self) -> Iterator[ResolvedSetting]:
        """Yield every setting of the command, secrets last."""
        has_all = self.service in SERVICES
        options = COMMANDS[self.service].arguments if has_all else TARGET_OPTIONS
        for option in filter(is_setting, options):
            if hasattr(self._args, get_setting_name(option)):
                yield self.find(option)
        for name in SECRET_NAMES:
            if name != "token" or hasattr(self._args, "token_file"):
                yield self.find_secret(name)

    def find(self, option: CommandArgument) -> ResolvedSetting:
        """Return a setting from the first source that has it, or its default."""
        name = get_setting_name(option)
        typed = getattr(self._args, name, None)
        if typed is not None:
            return ResolvedSetting(name, typed, option.name, FLAG_RANK)
        variable = f"{SETTINGS_PREFIX}{name.upper()}"
        if text := self._environment.get(variable):
            value = parse_text(variable, option, text)
            return ResolvedSetting(name, value, variable, ENVIRONMENT_RANK)
        if (found := self._file.find(name, self.service)) is not None:
            value = parse_value(found.source, option, found.value)
            return ResolvedSetting(name, value, found.source, FILE_RANK)
        return ResolvedSetting(name, _get_default_value(option), "default", DEFAULT_RANK)

    def find_secret(self, name: str) -> ResolvedSetting:
        """Return a secret from its variable or from its file; "" if there is none.

        Raises:
            Misconfigured: the environment has both, or the file has no secret.
        """
        file = self.find(CommandArgument(f"--{name.replace('_', '-')}-file", ""))
        variable = f"{SETTINGS_PREFIX}{name.upper()}"
        value = self._environment.get(variable)
        if value and file.rank == ENVIRONMENT_RANK:
            problem = "cannot be combined; set one of them"
            raise Misconfigured(f"{variable} and {file.source}", problem)
        if value and file.rank < ENVIRONMENT_RANK:
            return ResolvedSetting(name, value, variable, ENVIRONMENT_RANK)
        if file.value:
            secret = _read_secret(name, f"{file.source} {file.value}", Path(str(file.value)))
            return ResolvedSetting(name, secret, f"{file.source} {file.value}", file.rank)
        return ResolvedSetting(name, "", "default", DEFAULT_RANK)

    def list_unknown_variables(self) -> tuple[str, ...]:
        """Return the variables `MIDRUN_*` that name no setting of any command."""
        known = {f"{SETTINGS_PREFIX}{name.upper()}" for name in (*list_names(), *SECRET_NAMES)}
        return tuple(sorted(set(self._environment) - known - {f"{SETTINGS_PREFIX}CONFIG"}))


# The configuration file.


class FileValue(Struct, frozen=True):
    """A value as the file has it, and where it is."""

    value: object
    source: str


class ConfigFile:
    """The settings in a TOML file; none if `path` is empty."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._content = _read_toml(path) if path else {}
        general = {*list_names(), *SERVICES}
        for key, value in self._content.items():
            _check_key(path, key, general)
            if key in SERVICES:
                table = self._table(key, value)
                names = set(map(get_setting_name, filter(is_setting, COMMANDS[key].arguments)))
                for inner in table:
                    _check_key(f"{path} [{key}]", inner, names | _list_secret_file_names())

    def find(self, name: str, service: str) -> FileValue | None:
        """Return the value in the table of `service`, else the one above all tables."""
        table = self._content.get(service, {}) if service in SERVICES else {}
        if isinstance(table, dict) and name in table:
            return FileValue(table[name], f"{self._path} [{service}] {name}")
        if name in self._content:
            return FileValue(self._content[name], f"{self._path} {name}")
        return None

    def _table(self, key: str, value: object) -> Mapping[str, object]:
        if not _is_table(value):
            raise Misconfigured(f"{self._path} {key}", f"must be a table: [{key}]")
        return value


def _explain_failure(error: OSError | UnicodeDecodeError) -> str:
    """Return the text of an error without its number, and without the path of the file."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _read_toml(path: str) -> Mapping[str, object]:
    import tomllib  # noqa: PLC0415 - only for commands with a configuration file

    try:
        return tomllib.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError) as error:
        problem = f"Cannot read it: {_explain_failure(error)}. Check the path"
        raise Misconfigured(f"--config {path}", problem) from error
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured(f"--config {path}", f"is not valid TOML: {error}") from error


def _is_table(value: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(value, dict)


def _check_key(where: str, key: str, known: set[str]) -> None:
    """Refuse a key that is no setting, with the nearest known one."""
    if key in known:
        return
    if key in SECRET_NAMES:
        problem = (
            f"must not be in this file. Write the secret to a file that only its owner can "
            f"read, and name that file: {key}_file"
        )
        raise Misconfigured(f"{where} {key}", problem)
    raise Misconfigured(f"{where} {key}", f"is not a setting{suggest_name(key, known)}")


def suggest_name(name: str, known: set[str]) -> str:
    """Return "; did you mean …?" with the nearest known name; "" if none is near."""
    import difflib  # noqa: PLC0415 - for errors only

    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {close[0]}?" if close else "; see midrun config check"


# Names and values.


def is_setting(option: CommandArgument) -> bool:
    """Return whether an argument can also be set in the environment and the file."""
    return option.name.startswith("--") and option.name not in UNSET_OPTIONS


def get_setting_name(option: CommandArgument) -> str:
    """Return the name of an option in the file, and of its attribute."""
    return option.name.removeprefix("--").replace("-", "_")


def list_names() -> set[str]:
    """Return the names of all settings, of all commands."""
    options = [
        *TARGET_OPTIONS,
        *(each for name in SERVICES for each in COMMANDS[name].arguments),
    ]
    return set(map(get_setting_name, filter(is_setting, options))) | _list_secret_file_names()


def _list_secret_file_names() -> set[str]:
    return {f"{name}_file" for name in SECRET_NAMES}


def _get_default_value(option: CommandArgument) -> object:
    if option.name == "--store":
        return DEFAULT_STORE
    if option.kind == "flag":
        return False
    return None if option.default is None else option.type(option.default)


def parse_text(where: str, option: CommandArgument, text: str) -> object:
    """Return the value of a setting from the text of a variable.

    Raises:
        Misconfigured: the text is not a value of this setting.
    """
    if option.kind == "list":
        return [part.strip() for part in text.split(",") if part.strip()]
    if option.kind == "flag":
        word = text.lower()
        if word not in TRUE_WORDS | FALSE_WORDS:
            raise Misconfigured(where, f"must be true or false, got {text!r}")
        return word in TRUE_WORDS
    return _parse_single(where, option, text)


def parse_value(where: str, option: CommandArgument, value: object) -> object:
    """Return the value of a setting from the value in a file.

    Raises:
        Misconfigured: it has another type, or is not a value of this setting.
    """
    if option.kind == "flag":
        if not isinstance(value, bool):
            raise Misconfigured(where, f"must be true or false, got {value!r}")
        return value
    if option.kind == "list":
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise Misconfigured(
                where, f'must be a list of strings, such as ["…"], got {value!r}'
            )
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Misconfigured(where, f"must be a string or a number, got {value!r}")
    return _parse_single(where, option, str(value))


def _parse_single(where: str, option: CommandArgument, text: str) -> object:
    try:
        value = option.type(text)
    except (ValueError, ArgumentTypeError) as error:
        expected = getattr(option.type, "__name__", "value")
        raise Misconfigured(where, f"must be of type {expected}, got {text!r}") from error
    if option.choices is not None and value not in option.choices:
        raise Misconfigured(where, f"must be one of {', '.join(option.choices)}, got {text!r}")
    return value


def _read_secret(name: str, where: str, path: Path) -> str:
    """Return the secret in a file.

    Raises:
        Misconfigured: the file cannot be read, or is empty.
    """
    noun = name.replace("_", " ")
    try:
        secret = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        problem = (
            f"Cannot read the {noun}: {getattr(error, 'strerror', '') or error}. Check the path"
        )
        raise Misconfigured(where, problem) from error
    if not secret:
        problem = f"Cannot read the {noun}: the file is empty. Write the {noun} to it"
        raise Misconfigured(where, problem)
    return secret
