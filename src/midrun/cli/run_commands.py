"""Commands that drive runs: `run`, `attach`, `serve`, `worker` and `mcp`.

`run` and `attach` show one run and drive it while they show it. `serve` and `worker` drive all
runs of an app until a signal. At the first SIGINT or SIGTERM they stand down: calls in flight
get their grace, and the leases are returned. A second signal ends the process at once.
"""

import gc
import logging
import os
import re
import signal
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

import anyio

from midrun.agents.agent import Agent
from midrun.agents.file import File
from midrun.cli.follow import ShowOptions, capture_stderr, show_run
from midrun.cli.hints import format_command
from midrun.cli.output import CommandOutput
from midrun.cli.settings import SECRET_NAMES
from midrun.cli.targets import (
    check_store_file,
    find_run,
    load_agents,
    load_given_app,
    open_target,
)
from midrun.codec.hash_chain import HashChain
from midrun.core.values import DRIVABLE_PHASES
from midrun.driver.deletion import parse_age
from midrun.driver.user_code import list_unfinished
from midrun.errors import Misconfigured
from midrun.followers import Follower, following
from midrun.followers.metrics import Metrics, MetricSink
from midrun.logs import configure_logs
from midrun.ports.store import RunQuery
from midrun.runs import validation
from midrun.runs.midrun import Midrun
from midrun.runs.protocols import AnyRun
from midrun.stores.urls import SCHEMES, make_url_error
from midrun.workers.concurrency_limits import Fleet
from midrun.workers.local import RunPlacement
from midrun.workers.quotas import parse_quota_rules

if TYPE_CHECKING:
    from midrun.server import Auth, Limits, Network

# Setup of a worker or a server: its engine, its limits, its followers.


def build_worker(args: Namespace, agents: tuple[Agent, ...]) -> Midrun:
    """Return a `Midrun` that drives the runs of `agents`; it is not open yet.

    Raises:
        Misconfigured: the engine's package or the folder of the store is missing.
    """
    check_store_file(args.store, must_exist=False)
    fleet = Fleet(
        limits=_parse_limits("--limit", args.limit),
        here=_parse_limits("--here", args.here),
        versions=args.versions,
        quotas=parse_quota_rules(args.quota or ()),
    )
    return Midrun(
        args.store,
        agents=agents,
        engine=_choose_engine(args),
        fleet=fleet,
        retention=_parse_retention(args.retention),
        **args.keys,
    )


def _collect_garbage_rarely() -> None:
    """Let the garbage collector run less often, in a process that only drives runs.

    States are made of values that cannot be part of a cycle, but a full collection visits the
    containers of all runs. With 1,500 runs in a process that took a sixth of the CPU time, in
    pauses of half a second, and found nothing. An embedding program decides for itself.
    """
    gc.collect()
    gc.freeze()  # the modules, which stay
    gc.set_threshold(10_000, 20, 50)


def _parse_limits(option: str, words: Iterable[str] | None) -> dict[str, int]:
    """Return the limits by scope, from words such as `agent:clerk=10`.

    Raises:
        Misconfigured: a word is not of the form SCOPE=N.
    """
    limits: dict[str, int] = {}
    for word in words or ():
        scope, _, most = word.rpartition("=")
        if not most.isdecimal():
            problem = "must be SCOPE=N: all=50, agent:clerk=10, label:gpu=2"
            raise Misconfigured(f"{option} {word}", problem)
        limits[scope] = int(most)
    return limits


def _parse_retention(words: Iterable[str] | None) -> dict[str, timedelta | None]:
    """Return the ages by scope, from words such as `agent:clerk=90d` and `all=never`.

    Raises:
        Misconfigured: a word is not of the form SCOPE=AGE.
    """
    ages: dict[str, timedelta | None] = {}
    for word in words or ():
        scope, _, age = word.rpartition("=")
        try:
            ages[scope] = None if age == "never" else parse_age(age)
        except Misconfigured as error:
            problem = f"the age {error.problem}, or never: all=90d, label:gpu=never"
            raise Misconfigured(f"--retention {word}", problem) from None
    return ages


def _choose_engine(args: Namespace) -> Literal["local"] | RunPlacement | None:
    if args.engine == "none":
        return None
    if args.engine == "local":
        return "local"
    try:
        from midrun.workers.temporal import Temporal  # noqa: PLC0415 - needs its extra
    except ImportError as error:
        problem = f"install midrun[temporal] ({error})"
        raise Misconfigured("--engine temporal", problem) from error
    return Temporal(args.temporal_address, namespace=args.temporal_namespace)


@asynccontextmanager
async def open_with_followers(
    args: Namespace, midrun: Midrun, out: CommandOutput, *others: Follower
) -> AsyncIterator[Metrics | None]:
    """Open `midrun` with the followers that the options ask for; yield its metrics, if any.

    `others` are followers besides those of the common options.

    Raises:
        Misconfigured: an address or a secret is invalid, or a package is missing.
    """
    followers = [*_build_followers(args, midrun), *others]
    metrics = _build_metrics(args, midrun, [follower.name for follower in followers])
    with ExitStack() as stack:
        if args.metrics and metrics is not None:
            # Its package is there: `_build_metrics` has imported it.
            from midrun.followers.prometheus import serve_metrics  # noqa: PLC0415 - see above

            url = stack.enter_context(
                serve_metrics(args.metrics, metrics.render, token=args.metrics_token)
            )
            out.write({"metrics": url}, f"metrics: {url}")
        async with midrun, following(midrun, *followers, *([metrics] if metrics else [])):
            yield metrics


def _build_metrics(args: Namespace, midrun: Midrun, followers: Sequence[str]) -> Metrics | None:
    """Return the metrics that the options ask for; `followers` are measured, too."""
    if not (args.metrics or args.otel_metrics):
        return None
    sinks: list[MetricSink] = []
    try:
        if args.metrics:
            from midrun.followers.prometheus import PrometheusSink  # noqa: PLC0415 - extra

            sinks.append(PrometheusSink())
        if args.otel_metrics:
            from midrun.followers.otel_metrics import OtelSink  # noqa: PLC0415 - extra

            sinks.append(OtelSink())
    except ImportError as error:
        problem = f"install midrun[metrics] and midrun[otel] respectively ({error})"
        raise Misconfigured("--metrics and --otel-metrics", problem) from error
    return Metrics(midrun, *sinks, followers=followers)


def split_webhook(word: str) -> tuple[str | None, str]:
    """Return the tenant, or None for all tenants, and the address of `[TENANT=]URL`."""
    # An address may have "=" too, but only after its scheme.
    tenant, _, url = word.partition("=")
    is_address = "://" in tenant or "://" not in url
    return (None, word) if is_address else (tenant, url)


def _build_followers(args: Namespace, midrun: Midrun) -> list[Follower]:
    followers: list[Follower] = []
    try:
        if args.webhook:
            from midrun.followers.webhooks import Webhook  # noqa: PLC0415 - needs its extra

            for word in args.webhook:
                tenant, url = split_webhook(word)
                followers.append(Webhook(url, secret=args.webhook_secret, tenant=tenant))
        if args.spans:
            from midrun.followers.spans import Spans  # noqa: PLC0415 - needs its extra

            followers.append(Spans(midrun))
    except ImportError as error:
        problem = f"install midrun[client] and midrun[otel] respectively ({error})"
        raise Misconfigured("--webhook and --spans", problem) from error
    return followers


WAITING_RUNS_CHECKED_MAX: Final = 200
"""Number of waiting runs that are checked for agents that the app does not define."""


async def run(args: Namespace, out: CommandOutput) -> int:
    """Start a run and show it until it rests or the user leaves."""
    validation.check_task(args.task)  # first, so that an empty task does not create a store
    agents: tuple[Agent, ...] = () if args.url else load_agents(args.app)
    name = (args.agent or args.app) if args.url else _choose_agent(args, agents)
    # The capture is the outer context: closing the store stops tool processes, which may still
    # write to standard error.
    with capture_stderr(args, out) as captured:
        async with open_target(args, agents) as midrun:
            started = await midrun.start(
                name,
                args.task,
                thread=args.thread,
                labels=args.label,
                actor=args.actor,
                files=[File.from_path(path) for path in args.file or ()],
                tenant=args.tenant,
                team=args.team,
            )
            pause = format_command(args, "pause", started.id)
            first = "" if out.as_json else f"{started.id}\npause from any terminal: {pause}"
            watch = ShowOptions(
                driven_here=not args.url, stderr_capture=captured, first_text=first
            )
            return await show_run(started, args, out, watch)


def _choose_agent(args: Namespace, agents: tuple[Agent, ...]) -> str:
    names = [agent.name for agent in agents]
    if args.agent and args.agent not in names:
        problem = f"has no agent {args.agent}; its agents are: {', '.join(names)}"
        raise Misconfigured(args.app, problem)
    if not args.agent and len(names) > 1:
        problem = f"has several agents; choose one with --agent: {', '.join(names)}"
        raise Misconfigured(args.app, problem)
    return args.agent or names[0]


async def attach(args: Namespace, out: CommandOutput) -> int:
    """Show an existing run, and drive it if an app is given."""
    agents = load_given_app(args, "a server drives its runs")
    with capture_stderr(args, out) as captured:
        async with open_target(args, agents) as midrun:
            run = await find_run(midrun, args.run)
            if agents and not out.as_json:
                await _warn_if_agent_missing(run, agents, args, out)
            return await show_run(
                run, args, out, ShowOptions(driven_here=bool(agents), stderr_capture=captured)
            )


async def _warn_if_agent_missing(
    run: AnyRun, agents: tuple[Agent, ...], args: Namespace, out: CommandOutput
) -> None:
    """Warn that the run is only watched if the app does not define its agent."""
    agent, names = (await run.view()).agent, [agent.name for agent in agents]
    if agent not in names:
        has = f"which {args.app} does not define (it defines {', '.join(names)})"
        out.write_line([("bad", f"{run.id} needs agent {agent}, {has}; it is not driven here")])


async def _warn_of_waiting_runs(
    midrun: Midrun, agents: tuple[Agent, ...], args: Namespace, out: CommandOutput
) -> None:
    """Warn about undriven runs that wait for agents that this app does not define."""
    names, alive = [agent.name for agent in agents], await midrun.store.list_holders()
    waiting = RunQuery(phases=tuple(sorted(DRIVABLE_PHASES)), limit=WAITING_RUNS_CHECKED_MAX)
    rows = (await midrun.store.list_runs(waiting)).items
    # A run whose holder is alive is driven by another process, which knows its agent.
    undriven = [row.head.agent for row in rows if row.holder not in alive]
    missing = [agent for agent in undriven if agent not in names]
    if missing and not out.as_json:
        wait = "1 run waits" if len(missing) == 1 else f"{len(missing)} runs wait"
        agent_names = ", ".join(sorted(set(missing)))
        has = f"which {args.app} does not define (it defines {', '.join(names)})"
        out.write_line([("bad", f"{wait} for {agent_names}, {has}")])


PORT_MAX: Final = 65535


def check_service(args: Namespace) -> None:
    """Check the settings of a server or a worker, without starting it.

    Raises:
        Misconfigured: they cannot work, alone or together.
    """
    if args.store.partition(":")[0] not in SCHEMES:
        raise make_url_error(args.store)
    midrun = build_worker(args, ())
    HashChain(args.keys["chain_key"])
    _build_metrics(args, midrun, [each.name for each in _build_followers(args, midrun)])
    if args.metrics:
        from midrun.followers.prometheus import check_metrics  # noqa: PLC0415 - extra

        check_metrics(args.metrics, args.metrics_token)
    if not re.fullmatch(r".+:\d{1,5}", args.temporal_address):
        problem = f"must be HOST:PORT, got {args.temporal_address!r}"
        raise Misconfigured("--temporal-address", problem)
    if args.service != "serve":
        return
    if not 0 <= args.port <= PORT_MAX:
        raise Misconfigured("port", f"must be from 0 to {PORT_MAX}, got {args.port}")
    require_server()
    from midrun.server.auth import check_session_key  # noqa: PLC0415 - needs the extra
    from midrun.server.request_checks import parse_address  # noqa: PLC0415 - as above
    from midrun.server.serve import check_exposure  # noqa: PLC0415 - as above

    hosts, public = args.allow_host or (), args.public_url
    auth = _build_auth(args)  # also next to a token: they cannot be combined
    has_credential = args.token is not None or auth is not None
    check_session_key(_get_session_key(args), has_token=auth is None)
    check_exposure(args.host, has_credential=has_credential, is_named=bool(hosts or public))
    parse_address(hosts, args.allow_origin or (), public)
    _build_push(args)
    _build_network(args).check()
    build_limits(args)


def build_limits(args: Namespace) -> "Limits":
    """Return the limits of a server, with the quotas of its settings.

    Raises:
        Misconfigured: a quota has another form than SCOPE.NAME=N.
    """
    from midrun.server import Limits  # noqa: PLC0415 - needs the extra `server`

    rules = parse_quota_rules(args.quota or ())
    return Limits(
        quota=rules.user, tenant_quota=rules.tenant, tenant_quotas=dict(rules.tenants)
    )


def require_server() -> None:
    """Refuse to continue without the packages of the extra `server`."""
    try:
        import midrun.server  # noqa: PLC0415, F401 - needs the extra
    except ImportError as error:
        raise Misconfigured("serve", f"install midrun[server] ({error})") from error


def _build_auth(args: Namespace) -> "Auth | None":
    """Return the authentication of several users; None if there is only one token.

    Raises:
        Misconfigured: there is a token, too, or a setting is unusable.
    """
    ways: list[Auth] = []
    if args.users_file is not None:
        from midrun.server import UsersFile  # noqa: PLC0415 - needs the extra `server`

        users = UsersFile(args.users_file)
        users.load()  # at the start an unusable file is an error; later it is logged
        ways.append(users)
    if args.oidc_issuer:
        ways.append(_build_oidc(args))
    if not ways:
        return None
    if args.token is not None:
        problem = "cannot be combined with a token. Leave MIDRUN_TOKEN and --token-file out"
        raise Misconfigured("--users-file and --oidc-issuer", problem)
    from midrun.server import FirstOf  # noqa: PLC0415 - needs the extra `server`

    return ways[0] if len(ways) == 1 else FirstOf(*ways)


def _get_session_key(args: Namespace) -> bytes | None:
    return str(args.session_key).encode() or None


def _build_oidc(args: Namespace) -> "Auth":
    if not args.oidc_audience:
        raise Misconfigured("--oidc-issuer", "needs --oidc-audience: the name of this server")
    try:
        from midrun.server.oidc import oidc  # noqa: PLC0415 - needs the extra `oidc`
    except ImportError as error:
        raise Misconfigured("--oidc-issuer", f"install midrun[oidc] ({error})") from error
    pairs = [word.rpartition("=") for word in args.oidc_role or ()]
    return oidc(
        args.oidc_issuer,
        audience=args.oidc_audience,
        role_claim=args.oidc_role_claim,
        name_claim=args.oidc_name_claim,
        roles={value: role for value, _, role in pairs} if pairs else None,
        tenant_claim=args.oidc_tenant_claim,
        team_claim=args.oidc_team_claim,
        client_id=args.oidc_client_id,
        client_secret=args.oidc_client_secret,
    )


def _build_push(args: Namespace) -> list[Follower]:
    """Return the follower that sends the push notifications of A2A, if an origin is allowed."""
    if not args.a2a_push_to:
        return []
    try:
        from midrun.server.a2a.push import PushNotifications  # noqa: PLC0415 - needs its extra
    except ImportError as error:
        raise Misconfigured("--a2a-push-to", f"install midrun[a2a] ({error})") from error
    return [PushNotifications(args.a2a_push_to)]


def _build_network(args: Namespace) -> "Network":
    from midrun.server import Network  # noqa: PLC0415 - needs the extra `server`

    return Network(
        tls_cert=args.tls_cert,
        tls_key=args.tls_key,
        forwarded_allow_ips=args.forwarded_allow_ips,
        root_path=args.root_path,
        drain_s=args.drain,
    )


async def serve(args: Namespace, out: CommandOutput) -> int:
    """Serve an app over HTTP until interrupted."""
    require_server()
    from midrun.server import Bridges  # noqa: PLC0415 - needs the extra `server`
    from midrun.server import serve as listen  # noqa: PLC0415 - as above

    auth, limits = _build_auth(args), build_limits(args)
    agents = load_agents(args.app)
    midrun = build_worker(args, agents)
    _collect_garbage_rarely()
    _configure_logs(args)
    # uvicorn raises the signal that stopped it once more. This receiver catches it, so that the
    # process still stands down from its runs.
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM):
        async with open_with_followers(args, midrun, out, *_build_push(args)) as metrics:
            await _warn_of_waiting_runs(midrun, agents, args, out)
            await listen(
                midrun,
                host=args.host,
                port=args.port,
                token=args.token,
                auth=auth,
                allow_hosts=args.allow_host or (),
                allow_origins=args.allow_origin or (),
                limits=limits,
                bridges=Bridges(push_to=tuple(args.a2a_push_to or ())),
                session_key=_get_session_key(args),
                unsigned_checkpoints=args.unsigned_checkpoints,
                public_url=args.public_url,
                network=_build_network(args),
                metrics=metrics,
                say=lambda link: out.write({"url": link}, link),
            )
            _exit_at_next_signal()
    _exit_if_code_still_runs()
    return 0


def _configure_logs(args: Namespace) -> None:
    """Write the logs to standard error, unless the app has set logging up for itself.

    Options for logs that were given apply in any case.
    """
    is_wanted = args.log_format or args.log_level or args.access_log
    if logging.getLogger().handlers and not is_wanted:
        return
    secrets = [str(each.value) for each in args.settings if each.name in SECRET_NAMES]
    secrets += [
        urlsplit(args.store).password or "",
        *(split_webhook(word)[1] for word in args.webhook or ()),
    ]
    configure_logs(
        level=args.log_level or "info",
        log_format=args.log_format or "text",
        secrets=secrets,
        access=args.access_log,
    )


async def worker(args: Namespace, out: CommandOutput) -> int:
    """Drive the runs of an app until a signal; then stand down from all of them."""
    agents = load_agents(args.app)
    midrun = build_worker(args, agents)
    _collect_garbage_rarely()
    _configure_logs(args)
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with open_with_followers(args, midrun, out):
            names = ", ".join(agent.name for agent in agents)
            where = f"driving the runs of {names} in {args.store}; Ctrl-C stops"
            out.write({"driving": names, "store": args.store}, where)
            await _warn_of_waiting_runs(midrun, agents, args, out)
            async for _ in signals:
                break
            # Leaving the contexts below waits for calls in flight. From here on, another signal
            # ends the process without waiting.
            _exit_at_next_signal()
            out.write({"leaving": True}, "stopping: calls in flight get their grace period")
    out.write({"left": True}, "stopped: the runs continue when another worker takes them")
    _exit_if_code_still_runs()
    return 0


async def mcp(args: Namespace, _: CommandOutput) -> int:
    """Serve the runs of a store or a server as tools of an MCP server, over stdio."""
    try:
        from midrun.mcp_server.run_tools import RunAccess  # noqa: PLC0415 - needs the extra `mcp`
        from midrun.mcp_server.server import serve_stdio  # noqa: PLC0415 - needs the extra `mcp`
    except ImportError as error:
        raise Misconfigured("mcp", f"install midrun[mcp] ({error})") from error
    agents = load_given_app(args, "a server has its own agents")

    @asynccontextmanager
    async def open_access() -> AsyncIterator[RunAccess]:
        async with open_target(args, agents) as midrun:
            yield RunAccess(midrun, args.actor)

    await serve_stdio(open_access())
    _exit_if_code_still_runs()
    return 0


def _exit_at_next_signal() -> None:
    """End the process at the next SIGINT or SIGTERM, without waiting for calls."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _exit_at_once)


def _exit_at_once(number: int, _: object) -> None:
    # A signal handler runs between any two bytecodes, perhaps in the middle of a print. A
    # buffered write would then fail as re-entrant, so this one bypasses the buffers. `os._exit`
    # skips all cleanup, which could wait for a call that does not stop.
    name = signal.Signals(number).name
    text = (
        f"midrun: ended by another {name} before all calls had stopped. The outcome of calls "
        "in flight is unknown; the runs continue when another worker takes them.\n"
    )
    os.write(2, text.encode())
    os._exit(128 + number)


def _exit_if_code_still_runs() -> None:
    """End the process if tool code still runs; a normal exit would wait for its threads."""
    unfinished = list_unfinished()
    if not unfinished:
        return
    # `os._exit` neither flushes buffers nor runs exit handlers, so this is done here.
    sys.stdout.flush()
    sys.stderr.write(f"midrun: ended although code did not stop: {', '.join(unfinished)}\n")
    sys.stderr.flush()
    logging.shutdown()
    os._exit(0)
