"""HTTP server: each control is one authenticated request, each entry is streamed.

`app(mid, token=…)` makes an ASGI app, to run alone or mounted in FastAPI, Starlette or
Litestar. `serve(mid)` runs it with uvicorn, on loopback by default. Theory of operation:

- **A request.** `App` (`app.py`) checks host, origin, credential, rate, path, query, body size
  and role, in this order (`request_checks.py`, `auth.py`, `limits.py`). The first check that
  fails is the answer. A request that passes becomes a `RequestContext`: the caller, the path
  parameters, and the `ServerState` that all requests share. `routes.py` is the table of all
  endpoints; those of controls come from `runs/control_specs.py`. A handler decodes the body
  (`schemas.py`), calls `Midrun` or `Run`, whose `RunService` decides and appends, and returns
  a view. A refusal is an RFC 9457 problem.
- **Views.** `run_views.py` caches the state of each run and reads on from its last seq. The
  view is the same for all callers; `overlays.py` adds the viewer's overlay: which buttons this
  role may press, whether the worker still sends heartbeats, halts, and the current time. All
  values on the wire are in `runs/values.py` and `runs/wire.py`, which the client shares.
- **Feeds.** `broadcast.py` reads each watched run once, however many subscribers it has. The
  journal is the buffer: a `Subscriber` holds only deltas, and `feed_routes.py` reads entries
  by seq (`events.py` caches them encoded). A slow client is dropped and resumes by
  `Last-Event-ID` (`feed_routes.py`). The page also gets the changes of the view, the overlay
  and the turns there (`run_updates.py`), and after its first connection it fetches nothing.
- **Sessions and roles.** A bearer token, a one-time code or a signed cookie with its proof
  gives an `Actor` with the role viewer, user or operator (`auth.py`). A user sees only
  their own runs. Nothing else in a request can claim a name or a role.
- **Other protocols.** `agui/`, `a2a/`, `openai/` and `ai_sdk.py` translate their requests to
  the same controls; `mcp_routes.py` serves `midrun.mcp_server`.

Invariants: the server stores nothing of its own and decides nothing about a run; every answer
follows from the journal, the store's rows and the clock. Start with `App._respond`, then
`request_context.py`, then `controls.send_control`.
"""

try:
    from midrun.server.app import App, app
    from midrun.server.auth import Auth, FirstOf, Tokens, token_in
    from midrun.server.limits import Limits
    from midrun.server.request_context import Bridges
    from midrun.server.serve import Network, serve
    from midrun.server.users_file import UsersFile
    from midrun.workers.quotas import Quota
except ModuleNotFoundError as error:
    text = (
        f"Cannot import midrun.server: {error}. "
        "Run pip install 'midrun[server]', or pip install '.[server]' in a clone."
    )
    raise ModuleNotFoundError(text, name=error.name) from error

__all__ = [
    "App",
    "Auth",
    "Bridges",
    "FirstOf",
    "Limits",
    "Network",
    "Quota",
    "Tokens",
    "UsersFile",
    "app",
    "serve",
    "token_in",
]
