"""Requests of clients: their messages, the ids that find a repeated message, the wait.

The modules for chat completions and for responses share these.
"""

import mimetypes
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from msgspec import Struct
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from midrun.agents.file import UNKNOWN_MEDIA_TYPE, File
from midrun.core.ids import Seq
from midrun.core.state import State
from midrun.core.values import Json
from midrun.ports.environment import new_id
from midrun.ports.store import RunRow
from midrun.runs.run import Run
from midrun.server.chat_threads import (
    ONLY_FILES_TEXT,
    digest_content,
    read_file_part,
    stop_after_grace,
)
from midrun.server.feed_routes import run_until_first, wait_for_disconnect
from midrun.server.problem_details import HttpProblem, make_openai_error_response, to_problem
from midrun.server.request_context import RequestContext

RETRY_HEADER: Final = "x-stainless-retry-count"
"""The header in which the SDKs of OpenAI count the repetitions of a request."""

TEXT_TYPES: Final = frozenset({"text", "input_text", "output_text"})

AUDIO_TYPES: Final = {"mp3": "audio/mpeg"}
"""Media types of audio whose names differ from the format that a part names."""


class UserMessage(Struct, frozen=True, kw_only=True):
    """The text and the files of a message."""

    text: str = ""
    files: tuple[File, ...] = ()


def read_message(content: Json, name: str) -> UserMessage:
    """Return the text and the files of the message that an error calls `name`.

    Raises:
        HttpProblem: 422, a part is of another type, or a file is not in the message itself.
    """
    if isinstance(content, str):
        return UserMessage(text=content.strip())
    listed = content if isinstance(content, list) else []
    texts: list[str] = []
    files: list[File] = []
    for part in listed:
        if not isinstance(part, dict):
            continue
        if part.get("type") in TEXT_TYPES:
            texts.append(str(part.get("text", "")))
        else:
            files.append(_read_file(part, name, len(files) + 1))
    text = "\n".join(texts).strip()
    return UserMessage(text=text or (ONLY_FILES_TEXT if files else ""), files=tuple(files))


def _read_file(part: dict[str, Json], message: str, number: int) -> File:
    """Return the file in a part of a message; both protocols have their own names for it."""
    kind = str(part.get("type"))
    found = part.get(kind)
    # A chat completion has an object below the name of the type; a response has the fields in
    # the part itself, and `image_url` is a text there.
    fields = found if isinstance(found, dict) else part
    if fields.get("file_id"):
        problem = f"Cannot take {message}: there are no uploaded files here, but it names one."
        raise HttpProblem("invalid_body", 422, f"{problem} Send the data in the message.")
    match kind:
        case "image_url" | "input_image":
            url = fields.get("url") or fields.get("image_url")
            return read_file_part(message, f"image-{number}", "", str(url))
        case "input_audio":
            form = str(fields.get("format", ""))
            media_type = AUDIO_TYPES.get(form, f"audio/{form}")
            url = f"data:{media_type};base64,{fields.get('data', '')}"
            return read_file_part(message, f"audio-{number}", media_type, url)
        case "file" | "input_file":
            name = str(fields.get("filename") or f"file-{number}")
            data = str(fields.get("file_data") or fields.get("file_url") or "")
            guessed = mimetypes.guess_type(name)[0] or UNKNOWN_MEDIA_TYPE
            if not _URL_PATTERN.match(data):  # the data alone
                data = f"data:{guessed};base64,{data}"
            return read_file_part(message, name, "", data)
        case _:
            problem = f"Cannot take {message}: it has a part of type {kind}."
            raise HttpProblem("invalid_body", 422, f"{problem} Send text, images or files.")


_URL_PATTERN: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def split_history(
    messages: tuple[dict[str, Json], ...],
) -> tuple[UserMessage, tuple[dict[str, Json], ...]]:
    """Return the user's newest message, and the messages before it.

    It is empty if the agent has answered that message already.
    """
    for index in range(len(messages) - 1, -1, -1):
        role = messages[index].get("role")
        if role == "user":
            content = messages[index].get("content")
            return read_message(content, f"messages[{index}]"), messages[:index]
        if role not in {"system", "developer"}:  # left out: the agent has its own
            break
    return UserMessage(), messages


def read_earlier_files(
    earlier: tuple[dict[str, Json], ...],
) -> tuple[tuple[dict[str, Json], ...], tuple[File, ...]]:
    """Return the history that a client keeps, with the names of its files, and these files.

    A history has no files, so they are given to the run with the newest message.
    """
    history: list[dict[str, Json]] = []
    files: list[File] = []
    for index, message in enumerate(earlier):
        content = message.get("content")
        if message.get("role") != "user" or not isinstance(content, list):
            history.append(message)
            continue
        read = read_message(content, f"messages[{index}]")
        files += read.files
        names = [f"[{file.name}]" for file in read.files]
        history.append(message | {"content": "\n".join([read.text, *names])})
    return tuple(history), tuple(files)


def make_request_id(
    context: RequestContext, thread: str, sent: UserMessage, count: int, state: State | None
) -> str:
    """Return the request id of a message: that of the first attempt, if it is repeated.

    An `Idempotency-Key` names the message. Without it, the SDKs say that they repeat a request,
    but not which one: it is the newest with the same content at the same place in the thread.
    """
    prefix = make_prefix(context, thread)
    key = context.request.headers.get("idempotency-key")
    if key is not None:
        context.request_id()  # refuses an invalid key
        return f"{prefix}key:{key}"
    digest = digest_content(f"{count}:{sent.text}", files=sent.files)
    if state is not None and context.request.headers.get(RETRY_HEADER, "0") != "0":
        earlier = [name for name in state.requests if name.startswith(f"{prefix}{digest}:")]
        if earlier:
            return earlier[-1]
    return f"{prefix}{digest}:{new_id()}"


def make_prefix(context: RequestContext, thread: str) -> str:
    """Return the beginning of the request ids of all messages of the caller to a thread."""
    return context.make_request_id(f"openai:{thread}:")


_MESSAGE_ID_PATTERN: Final = re.compile(r"[^:]*:openai:")  # a name has no colon; see above


def find_next_message(state: State, begins_at: Seq) -> Seq | None:
    """Return the entry of the message after the one at `begins_at`; None without one."""
    later = (
        outcome.seq
        for request_id, outcome in state.requests.items()
        if outcome.seq > begins_at
        and not outcome.refused
        and _MESSAGE_ID_PATTERN.match(request_id)
    )
    return min(later, default=None)


async def read_row_state(context: RequestContext, row: RunRow | None) -> State | None:
    """Return the state of the run of a row, if there is one."""
    return None if row is None else await context.server.views.read_state(row.run)


class ChatDocument(Response):
    """The reply of a chat client as one document, which `build` returns when the run rests.

    If the client leaves before, the run is stopped, as for a stream. It counts as a stream: the
    handler has checked the number of streams before it sent the message.
    """

    def __init__(
        self, context: RequestContext, run: Run, build: Callable[[], Awaitable[Response]]
    ) -> None:
        super().__init__()
        self._context = context
        self._run = run
        self._build = build
        self._reply: Response | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait for the reply and send it; if the client left early, stop the run."""
        context, server = self._context, self._context.server
        streams = server.allowance.count_stream(context.caller.key, context.actor)
        with streams, server.chat_streams.count_stream(self._run.id):
            await run_until_first(
                partial(wait_for_disconnect, receive),
                context.wait_until_stopping,
                partial(context.caller.wait_until_invalid, server),
                self._build_reply,
            )
        if self._reply is not None:
            await self._reply(scope, receive, send)
            return
        # If the client has left, this is written to a closed connection.
        refusal = HttpProblem("unauthorized", 401, "The token is no longer valid.")
        if context.is_server_stopping:
            problem = f"Cannot wait for run {self._run.id}: the server stops. Send it again."
            refusal = HttpProblem("stopping", 503, problem, headers={"Retry-After": "1"})
        await make_openai_error_response(refusal)(scope, receive, send)
        await stop_after_grace(context, self._run)

    async def _build_reply(self) -> None:
        try:
            self._reply = await self._build()
        except Exception as error:
            problem = to_problem(error)
            if problem is None:
                raise
            self._reply = make_openai_error_response(problem)
