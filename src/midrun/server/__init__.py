"""The server: every control one authenticated HTTP call away, and every fact streamed out.

`app(mid, token=…)` is an ASGI app of its own, or a part of a FastAPI, Starlette or Litestar
application; `serve(mid)` binds one to loopback. The address space is described by
`GET /v1/openapi.json`.
"""

try:
    from midrun.server.app import App, app
    from midrun.server.auth import Auth, Tokens, token_in
    from midrun.server.limits import Limits, Quota
    from midrun.server.request_context import Bridges
    from midrun.server.serve import Network, serve
except ModuleNotFoundError as error:
    extra = "midrun.server: pip install 'midrun[server]', or '.[server]' from a clone"
    raise ModuleNotFoundError(f"{extra} ({error})", name=error.name) from error

__all__ = [
    "App",
    "Auth",
    "Bridges",
    "Limits",
    "Network",
    "Quota",
    "Tokens",
    "app",
    "serve",
    "token_in",
]
