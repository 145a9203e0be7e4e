"""Commands for the operation of a server: `config`."""

import re
from argparse import Namespace
from collections.abc import Iterator
from urllib.parse import urlsplit

from midrun.cli.output import CommandOutput
from midrun.cli.run_commands import check_service
from midrun.cli.settings import (
    SECRET_NAMES,
    SETTINGS_PREFIX,
    ResolvedSetting,
    list_names,
    suggest_name,
)
from midrun.errors import Misconfigured


async def config(args: Namespace, out: CommandOutput) -> int:
    """Print every setting with its value and source, then check them together.

    Raises:
        Misconfigured: a variable `MIDRUN_*` is no setting, or the settings cannot work.
    """
    rows = [(each.name, show_value(each), each.source) for each in args.settings]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, value, source in rows:
        line = f"{name:<{widths[0]}}  {value:<{widths[1]}}  {source}"
        out.write({"setting": name, "value": value, "source": source}, line)
    for problem in _list_unknown_variables(args):
        raise problem
    check_service(args)
    out.write({"valid": True}, f"The settings of midrun {args.service} are valid.")
    return 0


def _list_unknown_variables(args: Namespace) -> Iterator[Misconfigured]:
    known = {f"{SETTINGS_PREFIX}{name.upper()}" for name in (*list_names(), *SECRET_NAMES)}
    for name in args.unknown_variables:
        yield Misconfigured(name, f"is not a setting{suggest_name(name, known)}")


def show_value(setting: ResolvedSetting) -> str:
    """Return a value as text, without a secret, a password or the path of a webhook."""
    value = setting.value
    if setting.name in SECRET_NAMES:
        return "(hidden)" if value else "-"
    if value is None or value == "":
        return "-"
    if setting.name == "webhook" and isinstance(value, list):
        return ", ".join(
            f"{urlsplit(url).scheme}://{urlsplit(url).hostname}/…" for url in value
        )
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _hide_password(str(value))


def _hide_password(text: str) -> str:
    """Return an address without its password, wherever a driver accepts one."""
    text = re.sub(r"(://[^:/@]*):[^/]*@", r"\1:***@", text)
    return re.sub(r"(password=)[^&\s]*", r"\1***", text)
