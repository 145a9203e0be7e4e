"""Commands for the operation of a server: `config`, `users`, `keys`, `sessions`, `audit`."""

import csv
import io
import re
from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec.structs import asdict

from midrun.cli.output import CommandOutput
from midrun.cli.run_commands import check_service, require_server, split_webhook
from midrun.cli.settings import (
    SECRET_NAMES,
    SETTINGS_PREFIX,
    ResolvedSetting,
    list_names,
    suggest_name,
)
from midrun.core.ids import MICROS_PER_SECOND, Micros, micros_to_datetime
from midrun.errors import Misconfigured
from midrun.ports.audit import AuditEntry
from midrun.ports.environment import read_wall_clock
from midrun.runs.audit import CSV_FIELDS, iter_csv_values, verify_audit
from midrun.runs.midrun import Midrun
from midrun.runs.protocols import AnyMidrun

if TYPE_CHECKING:
    from midrun.server import UsersFile


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
        return ", ".join(map(_show_webhook, value))
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _hide_password(str(value))


def _show_webhook(word: str) -> str:
    """Return the tenant and the host of a webhook; its path may be a secret."""
    tenant, url = split_webhook(word)
    parts = urlsplit(url)
    return f"{'' if tenant is None else f'{tenant}='}{parts.scheme}://{parts.hostname}/…"


def _hide_password(text: str) -> str:
    """Return an address without its password, wherever a driver accepts one."""
    text = re.sub(r"(://[^:/@]*):[^/]*@", r"\1:***@", text)
    return re.sub(r"(password=)[^&\s]*", r"\1***", text)


async def keys(args: Namespace, out: CommandOutput) -> int:
    """Print a new encryption key as a line for a file of keys; it is stored nowhere else."""
    del args  # the only action is `new`
    from midrun.stores.encryption import format_key, make_key, make_key_id  # noqa: PLC0415 - slow

    key = make_key()
    line = f"{format_key(key)}  # key {make_key_id(key)}"
    out.write({"key": format_key(key), "key_id": make_key_id(key)}, line)
    return 0


async def users(args: Namespace, out: CommandOutput) -> int:
    """Change or list the users in a file. A new token is printed once and stored nowhere.

    Raises:
        Misconfigured: the name or the file is missing or unusable.
    """
    require_server()
    from midrun.server import UsersFile  # noqa: PLC0415 - needs the extra `server`

    if args.users_file is None:
        problem = "name the file with the users, or set MIDRUN_USERS_FILE"
        raise Misconfigured("--users-file", problem)
    file = UsersFile(args.users_file)
    if args.action == "list":
        _print_users(file, out)
        return 0
    if not args.name:
        raise Misconfigured("NAME", f"name the user: midrun users {args.action} NAME")
    if args.action == "revoke":
        file.revoke(args.name)
        out.write({"revoked": args.name}, f"revoked {args.name}: its tokens are not valid")
        return 0
    if args.action == "add":
        token = file.add(args.name, args.role, tenant=args.tenant, teams=args.team or ())
    else:
        token = file.rotate(args.name, args.overlap)
    out.write({"name": args.name, "token": token}, token)
    return 0


def _print_users(file: "UsersFile", out: CommandOutput) -> None:
    now = read_wall_clock()
    stored = file.load().users
    width = max((len(user.name) for user in stored), default=0)
    for user in stored:
        tokens = user.list_valid_tokens(now)
        ending = [token.expires_at for token in tokens if token.expires_at is not None]
        row = {
            "name": user.name,
            "role": user.role,
            "tenant": user.tenant,
            "teams": user.teams,
            "tokens": len(tokens),
            "next_expiry": min(ending, default=None),
        }
        count = "1 token" if len(tokens) == 1 else f"{len(tokens)} tokens"
        left = (
            f", {len(ending)} of them for {_format_hours_until(min(ending), now)}"
            if ending
            else ""
        )
        line = f"{user.name:<{width}}  {user.role:<8}  {count}{left}"
        line += f", tenant {user.tenant}" if user.tenant else ""
        line += f", teams {', '.join(user.teams)}" if user.teams else ""
        out.write(row, line)


def _format_hours_until(then: Micros, now: Micros) -> str:
    return f"{(then - now) / MICROS_PER_SECOND / 3600:.1f} h"


# The command `sessions`.


async def sessions(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """List the signed-in browsers of a server, or sign out those of a user.

    Raises:
        Misconfigured: no server is named, or no user.
    """
    from midrun.client.midrun import RemoteMidrun  # noqa: PLC0415 - needs the extra `client`

    if not isinstance(midrun, RemoteMidrun):
        problem = "needs --url: sessions are known to the server that opened them"
        raise Misconfigured("sessions", problem)
    if args.action == "end" and args.id:
        await midrun.end_session(args.id)
        out.write({"ended": 1}, f"ended session {args.id}")
        return 0
    if args.action == "end":
        if not args.name:
            raise Misconfigured("NAME", "name the user, or one session with --id")
        ended = await midrun.end_sessions(args.name)
        out.write({"ended": ended}, f"ended {ended} sessions of {args.name}")
        return 0
    now = read_wall_clock()
    for session in await midrun.list_sessions():
        line = f"{session.id}  {session.name}  {session.role}"
        line += f"  tenant {session.tenant}" if session.tenant else ""
        out.write(session, f"{line}  for {_format_hours_until(session.expires_at, now)}")
    return 0


# The command `audit`.


async def audit(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Print the audit trail of a time range, or verify the audit log of the store."""
    if args.verify or args.expect:
        if not isinstance(midrun, Midrun):
            problem = "Cannot verify the audit log of a server: its store has the log and the "
            raise Misconfigured("verify", f"{problem}chain key. Run the command with --store")
        verdict = await verify_audit(midrun.store, args.expect or "")
        out.write(verdict, str(verdict))
        return 0 if verdict else 1
    is_csv = args.format == "csv" and not out.as_json
    if is_csv:
        out.write_raw(format_csv_line(CSV_FIELDS))
    async for entry in midrun.audit(since=args.since, until=args.until):
        values = make_values(entry)
        if is_csv:
            out.write_raw(format_csv_line(tuple(iter_csv_values(values))))
        elif out.as_json or args.format == "jsonl":
            out.write_json({name: value for name, value in values.items() if value})
        else:
            out.write_text(format_line(values))
    return 0


def make_values(entry: AuditEntry) -> dict[str, object]:
    """Return the fields of an entry, with its time as text in UTC."""
    at = micros_to_datetime(entry.at).isoformat(timespec="milliseconds")
    values = asdict(entry)
    del values["at"]
    return {"time": at.replace("+00:00", "Z"), **values}


def format_csv_line(values: tuple[str, ...]) -> str:
    """Return one line of CSV, with its newline."""
    line = io.StringIO()
    csv.writer(line).writerow(values)
    return line.getvalue()


def format_line(values: dict[str, object]) -> str:
    """Return one entry as a line for people."""
    actor = values["actor"] or "unknown caller"
    parts = [f"{values['time']}  {actor}: {values['action']}"]
    parts += [str(values[name]) for name in ("target", "run") if values[name]]
    if values["outcome"] != "done":
        parts.append(f"({values['outcome']})")
    if values["reason"]:
        parts.append(f"“{values['reason']}”")
    return " ".join(parts)
