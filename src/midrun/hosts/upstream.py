"""`Upstream`: the real model provider behind the gateway of a hosted process."""

import os
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct

from midrun.codec.safe_repr import safe_repr
from midrun.errors import Misconfigured

ProviderName: TypeAlias = Literal["anthropic", "openai"]

DEFAULT_URLS: Final = {
    "anthropic": "https://api.anthropic.com",
    "openai": "https://api.openai.com",
}
URL_VARIABLES: Final = {"anthropic": "ANTHROPIC_BASE_URL", "openai": "OPENAI_BASE_URL"}
KEY_VARIABLES: Final = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}


class Upstream(Struct, frozen=True):
    """The provider to which the gateway forwards model requests of one protocol.

    Attributes:
        provider: "anthropic" for the Messages protocol, "openai" for Chat Completions and
            Responses.
        url: The address of the provider, with or without `/v1` at its end. Default: the
            variable ANTHROPIC_BASE_URL or OPENAI_BASE_URL of the worker, else the provider's
            own address.
        key: The API key. The hosted process never sees it. Default: the variable
            ANTHROPIC_API_KEY or OPENAI_API_KEY of the worker, read when a run needs it.
    """

    provider: ProviderName
    url: str = ""
    key: str = ""

    def __repr__(self) -> str:
        return f"<upstream {self.provider}, {self.url or 'default address'}>"  # without the key

    def find_url(self) -> str:
        """Return the address without `/v1`, which is a part of the path of every request."""
        url = self.url or os.environ.get(URL_VARIABLES[self.provider], "")
        url = (url or DEFAULT_URLS[self.provider]).rstrip("/")
        return url.removesuffix("/v1")

    def find_key(self) -> str:
        """Return the key; "" if there is none."""
        return self.key or os.environ.get(KEY_VARIABLES[self.provider], "")


DEFAULT_UPSTREAMS: Final = (Upstream("anthropic"), Upstream("openai"))


def check_upstreams(owner: str, given: object) -> tuple[Upstream, ...]:
    """Return the value of the option `upstream` as a tuple.

    Raises:
        Misconfigured: It is not one `Upstream` for each of some providers.
    """
    found = (given,) if isinstance(given, Upstream) else given
    if not isinstance(found, list | tuple) or not all(isinstance(u, Upstream) for u in found):
        problem = f'upstream must be Upstream("anthropic", url=…), got {safe_repr(given, 80)}'
        raise Misconfigured(owner, problem)
    upstreams: tuple[Upstream, ...] = tuple(found)
    names = [upstream.provider for upstream in upstreams]
    if not names or len(set(names)) < len(names) or not set(names) <= set(DEFAULT_URLS):
        problem = f'upstream must have "anthropic", "openai" or both, once each, got {names}'
        raise Misconfigured(owner, problem)
    for upstream in upstreams:
        if upstream.url and urlsplit(upstream.url).scheme not in {"http", "https"}:
            problem = f"the url of an upstream must begin with https://, got {upstream.url!r}"
            raise Misconfigured(owner, problem)
    return upstreams
