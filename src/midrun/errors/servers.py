"""What can come between a client and the server that has the runs."""

from typing import Final

from midrun.errors.root import MidrunError

_ADVICE: Final = {
    401: "pass the token that the server was started with: connect(url, token=…)",
    403: "ask somebody whose token has the role for it",
    412: "look at the run again, then decide",
    429: "ask less often, or let what waits come to an end",
}


class ServerUnreachable(MidrunError):
    """No server answers there, or it broke off and did not come back in time.

    With a `request_id`, something was asked of it: whether it arrived nobody can say. Asking
    again under that id is safe: it is applied once.
    """

    code = "server_unreachable"

    def __init__(self, url: str, problem: str, request_id: str = "") -> None:
        super().__init__(url, problem, request_id)
        self.url = url
        self.problem = problem
        self.request_id = request_id

    def __str__(self) -> str:
        again = f"repeat it with request_id={self.request_id!r}" if self.request_id else ""
        advice = "check the address, and that `midrun serve` runs there"
        if again:
            advice += f"; what was asked may have arrived: {again}"
        return f"server {self.url}: {self.problem}; {advice}"


class ServerRefused(MidrunError):
    """The server said no for a reason of its own: the credential, a limit, a bad request.

    `problem` is the stable name of it, the end of the `type` of its problem+json. Nothing was
    applied.
    """

    code = "server_refused"

    def __init__(self, url: str, status: int, problem: str, detail: str = "") -> None:
        super().__init__(url, status, problem, detail)
        self.url = url
        self.status = status
        self.problem = problem
        self.detail = detail

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        advice = _ADVICE.get(self.status, "see docs/guides/client.md")
        return f"server {self.url}: {self.status} {self.problem}{detail}; {advice}"
