"""Redaction: keep secrets out of the journal, and give them back to tools.

`codec.redaction` finds secrets in a value. This module applies it to driver inputs, controls
and deltas, and remembers each secret in the memory of this process, and nowhere else:

- **Before an entry is journaled**, each secret is replaced by a placeholder, `[redacted:…]`. It
  is a keyed hash of the secret, so that equal secrets of a run have equal placeholders. All
  that is made from the journal has the placeholder, too: feeds, reports, checkpoints, and the
  history that a model is given.
- **Before a call is made**, `SecretRegistry.restore_call` puts the secrets back into its
  arguments. After a restart the process does not know them; then the call is not made, and the
  model is told to ask again (`tool_calls.SECRETS_LOST`).
- **A secret that was found once is searched for in all later text of the run.** A value that a
  model wrote under a secret's name is not: see `RunSecrets`.
- **Live deltas** come in pieces, before a secret can be recognised: see `LiveRedactor`.

Searching a large value takes long, so the work is a generator (`Steps`) that `run_in_slices`
runs with pauses for the event loop.
"""

import hmac
from array import array
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from hashlib import sha256
from operator import is_
from typing import Final, TypeVar, cast, get_args, get_type_hints

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from midrun.agents.agent import Agent
from midrun.agents.file import File, is_text_type
from midrun.agents.tool import Tool
from midrun.codec.redaction import (
    MODEL_DATA_SCOPE,
    MODEL_TEXT_SCOPE,
    PERSON_TEXT_SCOPE,
    SLICE_CHARS,
    FindSecrets,
    Redactor,
    SearchScope,
    Span,
    Steps,
    is_secret_name,
    may_contain_secret_name,
    merge_spans,
    run_steps,
)
from midrun.core.controls import Approve, ControlBase
from midrun.core.driver_inputs import CloseCall, DriverInput, FinishHostedAgent
from midrun.core.entries import CallDone, RunStarted
from midrun.core.ids import CallId, RunId
from midrun.core.journaled_text import format_output
from midrun.core.lru import LruDict
from midrun.core.placeholders import PLACEHOLDER, PLACEHOLDER_PREFIX, is_declared, join_path
from midrun.core.state import CallState, State
from midrun.core.values import Json, Message, Reply, RequestedCall
from midrun.driver.delta import Delta
from midrun.driver.sanitize import run_in_slices

REMEMBERED_MAX_RUNS: Final = 1024
"""Runs whose secrets are remembered; the least recently used is forgotten first."""

RUN_MAX_SECRETS: Final = 256
"""Secrets that are remembered for each run."""

SEARCHED_MIN_CHARS: Final = 6
"""Characters. A shorter secret is replaced where it was found, but not searched elsewhere."""

SEARCHED_MAX_CHARS: Final = 16_384
"""A longer secret is replaced where it was found, but not searched elsewhere."""

SEARCHED_ONE_BY_ONE_MAX_SECRETS: Final = 16
"""Up to this number, each secret is searched by itself; beyond it, see `_find_candidates`."""

PIECE_CHARS: Final = 131_072
"""Characters that one `str.find` or one hash update handles between two yields."""

TYPED_OUTPUT_SCOPE: Final = SearchScope(everywhere=False)
"""For a typed output: data with names, which a model wrote; its text is JSON, or has it."""

WORD_BYTES: Final = array("I").itemsize


class SecretRegistry:
    """The secrets of all runs of this process.

    `redact` is the user's own search function, or True or False to switch redaction on or off.
    Processes with the same `key` compute the same placeholder for the same secret of a run.
    """

    def __init__(self, redact: bool | FindSecrets, key: bytes) -> None:  # noqa: FBT001 - the public argument
        self.is_enabled = redact is not False
        self.find_secrets = redact if callable(redact) else None
        self._key = key
        self._runs: LruDict[RunId, RunSecrets] = LruDict(max_items=REMEMBERED_MAX_RUNS)

    def get_run(self, run: RunId) -> "RunSecrets":
        """Return the secrets of `run`; create an empty set for a new run."""
        found = self._runs.get(run)
        if found is None:
            # Each run has a salt of its own: the same secret has another placeholder in another
            # run, and a reader of two journals cannot tell that they share it.
            salt = hmac.digest(self._key, run.encode(), "sha256")
            found = RunSecrets(salt, self.find_secrets)
            self._runs.put(run, found)
        return found

    def redact_all_known(self, run: RunId, text: str) -> str:
        """Replace all known secrets of `run` in `text`, in one go."""
        return self.get_run(run).redact_all_known(text)

    def restore_call(self, run: RunId, call: CallState) -> CallState:
        """Return `call` with its secrets in arguments, progress, result and answer.

        The call of a child run stays redacted: its task goes into the child's journal.
        """
        # Not `get_run`, which would create an entry for a run without secrets.
        secrets = self._runs.get(run)
        if secrets is None or not secrets.has_secrets or call.use.kind == "child":
            return call
        use = call.use
        if has_placeholder(use.args):
            use = replace(use, args=secrets.restore_args(use))
        progress, result = secrets.restore(call.progress), secrets.restore(call.result)
        answered = secrets.restore(call.question_answer)
        return replace(
            call, use=use, progress=progress, result=result, question_answer=answered
        )

    def has_lost_secrets(self, run: RunId, value: Json) -> bool:
        """Tell whether `value` has a placeholder whose secret this process does not know."""
        if not (self.is_enabled and has_placeholder(value)):
            return False
        return self.get_run(run).has_unknown_placeholder(value)


class RunSecrets:
    """The secrets of one run.

    `_secret_by_placeholder` maps placeholders to the secrets that a tool may be given back.
    `_searched_secrets` has the secrets that are searched for in every text of the run, each
    with the number at which it was found. A value that a model wrote under a secret's name is
    not among them (`everywhere=False`): otherwise a model could hide any text from an approver,
    by writing it once as a password. `found_count` counts the secrets in `_searched_secrets`
    that were ever found.
    """

    def __init__(self, salt: bytes, find_secrets: FindSecrets | None) -> None:
        self.redactor = Redactor(self, find_secrets)
        self.found_count = 0
        self.has_secrets = False  # was any secret found, to be given back or searched for
        self._salt = salt
        self._secret_by_placeholder: LruDict[str, str] = LruDict(max_items=RUN_MAX_SECRETS)
        # By secret: its number and its placeholder.
        self._searched_secrets: LruDict[str, tuple[int, str]] = LruDict(
            max_items=RUN_MAX_SECRETS
        )
        # By the digest of the redacted call: its original arguments.
        self._original_args: LruDict[bytes, Json] = LruDict(max_items=RUN_MAX_SECRETS)

    # ── replacing secrets ─────────────────────────────────────────────────────────────────

    def redact(self, secret: str, *, everywhere: bool = True) -> str:
        """Return the placeholder of `secret`, and remember the secret.

        With `everywhere`, it is also replaced in all later text of the run.
        """
        digest = hmac.digest(self._salt, secret.encode("utf-8", "surrogatepass"), "sha256")
        return self._remember_secret(secret, digest, everywhere=everywhere)

    def redact_in_steps(self, secret: str, *, everywhere: bool = True) -> Steps[str]:
        """Return the placeholder of a secret of any length, in steps."""
        if len(secret) <= PIECE_CHARS:
            return self.redact(secret, everywhere=everywhere)
        mac = hmac.new(self._salt, digestmod="sha256")
        for start in range(0, len(secret), PIECE_CHARS):
            mac.update(secret[start : start + PIECE_CHARS].encode("utf-8", "surrogatepass"))
            yield
        return self._remember_secret(secret, mac.digest(), everywhere=everywhere)

    def _remember_secret(self, secret: str, digest: bytes, *, everywhere: bool) -> str:
        placeholder = f"{PLACEHOLDER_PREFIX}{digest.hex()[:12]}]"
        self.has_secrets = True
        self._secret_by_placeholder.put(placeholder, secret)
        if everywhere and SEARCHED_MIN_CHARS <= len(secret) <= SEARCHED_MAX_CHARS:
            if secret not in self._searched_secrets:
                self.found_count += 1
            number, _ = self._searched_secrets.get(secret, (self.found_count, ""))
            self._searched_secrets.put(secret, (number, placeholder))
        return placeholder

    def may_contain_secret(self, text: str) -> bool:
        """Tell whether a known secret may be in a short text; False is certain."""
        if len(text) < SEARCHED_MIN_CHARS or not self._searched_secrets:
            return False
        return len(self._searched_secrets) > SEARCHED_ONE_BY_ONE_MAX_SECRETS or any(
            secret in text for secret in self._searched_secrets
        )

    def redact_known(self, text: str, since: int = 0) -> Steps[str]:
        """Replace the known secrets in `text`, except the first `since` that were found."""
        known = [(s, p) for s, (number, p) in self._searched_secrets.items() if number > since]
        if len(known) > SEARCHED_ONE_BY_ONE_MAX_SECRETS and len(text) > SLICE_CHARS:
            known = yield from _find_candidates(text, known)
        placeholders: dict[str, str] = {}
        spans: list[Span] = []
        left = SLICE_CHARS * SEARCHED_ONE_BY_ONE_MAX_SECRETS  # characters until the next yield
        for secret, placeholder in known:
            at = text.find(secret) if len(text) <= SLICE_CHARS else 0
            while 0 <= at < len(text):
                # Pieces are longer than slices: `str.find` is several times faster than `re`.
                # Each search reaches beyond its piece, for a secret that crosses the border.
                piece = min(at + PIECE_CHARS, len(text))
                left -= piece - at
                found = text.find(secret, at, piece + len(secret) - 1)
                if found >= 0:
                    placeholders[secret] = placeholder
                    spans.append((found, found + len(secret)))
                at = piece if found < 0 else found + len(secret)
                if left < 0:
                    left = SLICE_CHARS * SEARCHED_ONE_BY_ONE_MAX_SECRETS
                    yield
        if not spans:
            return text
        parts, end = [], 0
        # Secrets may overlap, or one may hold another. Overlapping spans are merged, and the
        # merged text is a secret of its own, which gets a placeholder here.
        for start, stop in merge_spans(spans):
            secret = text[start:stop]
            placeholder = placeholders.get(secret) or self.redact(secret, everywhere=False)
            parts += [text[end:start], placeholder]
            end = stop
        return "".join([*parts, text[end:]])

    def redact_all_known(self, text: str) -> str:
        """Replace all known secrets in `text`, in one go."""
        return run_steps(self.redact_known(text))

    def count_secret_start(self, text: str) -> int:
        """Return how many characters at the end of `text` may begin a known secret."""
        longest = 0
        for secret in self._searched_secrets:
            # Live text is sent in pieces, and a secret may be split between two. The end of a
            # piece that could be the beginning of a secret is held back until the next piece
            # decides.
            at = text.find(secret[0], max(0, len(text) - len(secret) + 1))
            while at >= 0 and len(text) - at > longest:
                if secret.startswith(text[at:]):
                    longest = len(text) - at
                    break
                at = text.find(secret[0], at + 1)
        return longest

    def redact_use(self, use: RequestedCall, *, by_model: bool) -> Steps[RequestedCall]:
        """Redact a requested call, and remember its original arguments."""
        # A secret that a model wrote is replaced in place only; see the class.
        scope = SearchScope(everywhere=not by_model, declared=use.traits.secret)
        words = MODEL_TEXT_SCOPE if by_model else PERSON_TEXT_SCOPE
        args = yield from self.redactor.redact_value(use.args, scope)
        # The tool must get the arguments as the model wrote them. They stay in memory, and are
        # found again by the digest of the redacted call, which the journal has.
        if args is not use.args:
            self._original_args.put(_hash_call(use.tool, args), use.args)
        why = yield from self.redactor.redact_value(use.why, words)
        refused = yield from self.redactor.redact_value(use.refused, scope)
        if args is use.args and why is use.why and refused is use.refused:
            return use
        return replace(use, args=args, why=why, refused=refused)

    def is_clean_reply(self, reply: Reply) -> bool:
        """Tell whether `redact_reply` certainly returns `reply` itself."""
        is_clean = self.redactor.is_clean
        for use in reply.uses:
            if use.why or use.refused or use.traits.secret or not is_clean(use.args):
                return False
        if reply.thinking or reply.opaque or reply.invalid_output:
            return False
        if reply.value is not None and not is_clean(reply.value, TYPED_OUTPUT_SCOPE):
            return False
        return is_clean(reply.text, _choose_reply_scope(reply))

    def redact_reply(self, reply: Reply) -> Steps[Reply]:
        """Redact the reply of a model."""
        uses: list[RequestedCall] = []
        for use in reply.uses:  # before the text, which may repeat a secret from an argument
            shown = yield from self.redact_use(use, by_model=True)
            uses.append(shown)
        value = yield from self.redactor.redact_value(reply.value, TYPED_OUTPUT_SCOPE)
        # The text is the same data as the value, perhaps written otherwise.
        said = reply.text if value is reply.value else format_output(value)
        text = yield from self.redactor.redact_value(said, _choose_reply_scope(reply))
        thinking = yield from self.redactor.redact_value(reply.thinking, MODEL_TEXT_SCOPE)
        opaque = yield from self.redactor.redact_value(reply.opaque, MODEL_DATA_SCOPE)
        problem = yield from self.redactor.redact_value(reply.invalid_output, MODEL_TEXT_SCOPE)
        same = (
            text is reply.text
            and thinking is reply.thinking
            and opaque is reply.opaque
            and value is reply.value
            and problem is reply.invalid_output
            and all(a is b for a, b in zip(uses, reply.uses, strict=True))
        )
        if same:
            return reply
        return replace(
            reply,
            uses=tuple(uses),
            text=text,
            thinking=thinking,
            opaque=opaque,
            value=value,
            invalid_output=problem,
        )

    # ── restoring secrets ─────────────────────────────────────────────────────────────────

    def restore_args(self, use: RequestedCall) -> Json:
        """Return the original arguments of a call.

        A model may also copy a placeholder from its history into new arguments. That is
        replaced by its secret only in a field for secrets: one with a secret's name, or one
        that the tool declares secret. Otherwise a prompt injection could make the model send
        the secret away in a message or a URL.
        """
        # The redacted arguments identify the call: equal secrets have equal placeholders. A
        # copy is returned, as the tool may change it.
        written = self._original_args.get(_hash_call(use.tool, use.args), use.args)
        return self.restore(deepcopy(written), declared=use.traits.secret)

    def has_unknown_placeholder(self, value: Json) -> bool:
        """Tell whether `value` has a placeholder whose secret is not known."""
        found = (m for text in _iter_texts(value) for m in PLACEHOLDER.findall(text))
        return any(placeholder not in self._secret_by_placeholder for placeholder in found)

    def restore(
        self, value: Json, name: str = "", declared: tuple[str, ...] = (), path: str = ""
    ) -> Json:
        """Return `value` with placeholders replaced by secrets in fields for secrets."""
        match value:
            case str() if is_secret_name(name) or is_declared(path, declared):
                return self._secret_by_placeholder.get(value, value)
            case dict():
                held = is_secret_name(name)
                return {
                    k: self.restore(
                        v, name if held else str(k), declared, join_path(path, str(k))
                    )
                    for k, v in value.items()
                }
            case list():
                return [self.restore(item, name, declared, path) for item in value]
            case _:
                return value


def _find_candidates(text: str, known: list[tuple[str, str]]) -> Steps[list[tuple[str, str]]]:
    """Return those of many `known` secrets that may be in `text`.

    To search for each of 256 secrets takes 50 ms per megabyte. This reads the text once, as
    aligned words of four bytes. Wherever a secret of seven bytes or more begins, one of its
    four words at the offsets 0 to 3 is aligned with the words of the text. So a secret is a
    candidate if one of these words occurs; shorter secrets are always candidates.
    """
    words: dict[int, list[tuple[str, str]]] = {}
    found: dict[str, str] = {}
    for secret, placeholder in known:
        data = secret.encode("utf-8", "surrogatepass")
        if len(data) < WORD_BYTES * 2 - 1:
            found[secret] = placeholder
            continue
        for offset in range(WORD_BYTES):
            (word,) = array("I", data[offset : offset + WORD_BYTES])
            words.setdefault(word, []).append((secret, placeholder))
    keys = frozenset(words)
    for start in range(0, len(text), SLICE_CHARS * 4):
        # Read on beyond the end of the piece, for a secret that begins with its last character.
        piece = text[start : start + SLICE_CHARS * 4 + WORD_BYTES * 2]
        data = piece.encode("utf-8", "surrogatepass")
        data += bytes(-len(data) % WORD_BYTES)
        for word in keys.intersection(array("I", data)):
            found.update(words[word])
        yield
    return list(found.items())


def has_placeholder(value: Json) -> bool:
    """Tell whether a text in `value` has a placeholder."""
    if isinstance(value, str):
        return PLACEHOLDER_PREFIX in value
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return False
    # A loop, and no generator over all texts: every call is asked about its arguments.
    for inner in value:
        if isinstance(inner, str):
            if PLACEHOLDER_PREFIX in inner:
                return True
        elif isinstance(inner, dict | list) and has_placeholder(inner):
            return True
    return False


def _iter_texts(value: Json) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for inner in value.values():
                yield from _iter_texts(inner)
        case list():
            for inner in value:
                yield from _iter_texts(inner)
        case _:
            return


def _hash_call(tool: str, args: Json) -> bytes:
    return sha256(msgspec.json.encode([tool, args], order="sorted")).digest()


# Redaction of driver inputs, controls and entries, field by field.
#
# Fields are chosen by name, so that a new kind of input with an `error` field is redacted
# without a change here. Data of tools and text of people are searched for names and shapes of
# secrets, text of models for shapes only. A secret that a model wrote is replaced where it
# stands, and nowhere else.

StructT = TypeVar("StructT", bound=Struct)
ControlT = TypeVar("ControlT", bound=ControlBase)

TOOL_DATA_FIELDS: Final = frozenset(
    {
        "args", "data", "encoding_error", "error", "extra", "progress", "question", "result",
        "schema", "value",
    }
)  # fmt: skip
"""Fields with data of tools, answers for tools, and further settings of models."""

TEXT_FIELDS: Final = frozenset({"instruction", "output", "reason", "task", "text", "thinking"})
"""Fields with text of people or models."""

STRUCT_FIELDS: Final = frozenset({"model_settings", "outcome"})
"""Fields that hold a struct with such fields."""

ARGS_TAIL_CHARS: Final = 40
"""Characters of arguments to remember, so that a name that comes in two deltas is found."""

STRUCT_LIST_FIELDS: Final = frozenset({"client_tools", "items", "history", "made"})
"""Fields that hold several such structs: the tools of a client, the items of a plan, the
messages of a history, and the calls of a message."""

HELD_BACK_MAX_STREAMS: Final = 512
"""Streams of calls whose held-back text is remembered."""


async def redact_struct(
    secret_registry: SecretRegistry, run: RunId, struct: StructT
) -> StructT:
    """Redact a driver input, a control or an entry; search a large value in slices."""
    if not secret_registry.is_enabled:
        return struct
    secrets = secret_registry.get_run(run)
    if _is_clean(secrets, struct):
        return struct
    return await run_in_slices(_redact_struct_in_steps(secrets, struct))


def redact_struct_now(secret_registry: SecretRegistry, run: RunId, struct: StructT) -> StructT:
    """Redact a small driver input without yielding to the event loop."""
    return (
        run_steps(_redact_struct_in_steps(secret_registry.get_run(run), struct))
        if secret_registry.is_enabled
        else struct
    )


def _is_clean(secrets: RunSecrets, struct: Struct) -> bool:
    """Tell whether a struct certainly has no secret; False if it needs a search."""
    is_clean = secrets.redactor.is_clean
    for name in _list_searched_fields(type(struct)):
        value: object = getattr(struct, name)
        if not value:
            continue
        if isinstance(value, Reply):
            if not secrets.is_clean_reply(value):
                return False
        elif isinstance(value, Struct):
            if name not in STRUCT_FIELDS or not _is_clean(secrets, value):
                return False
        elif name not in TOOL_DATA_FIELDS or not is_clean(value):
            return False
    return True


def _redact_struct_in_steps(secrets: RunSecrets, struct: StructT) -> Steps[StructT]:
    changed: dict[str, object] = {}
    words = _choose_text_scope(struct)
    for name in _list_searched_fields(type(struct)):
        before: object = getattr(struct, name)
        after = yield from _redact_field(secrets, name, before, words)
        if after is not before:
            changed[name] = after
    if isinstance(struct, FinishHostedAgent) and "value" in changed:
        # The output in words is the same data.
        text = format_output(changed["value"])
        changed["output"] = yield from secrets.redactor.redact_value(text, words)
    return replace(struct, **changed) if changed else struct


def _choose_text_scope(struct: Struct) -> SearchScope:
    """Return the scope of the texts of a struct, by their author."""
    match struct:
        case ControlBase() | RunStarted() | Message(role="user"):
            return PERSON_TEXT_SCOPE
        case FinishHostedAgent(value=value) if value is not None:
            return TYPED_OUTPUT_SCOPE
        case _:
            return MODEL_TEXT_SCOPE


def _choose_reply_scope(reply: Reply) -> SearchScope:
    """Return the scope of the text of a reply: data if it is an output, valid or not."""
    is_output = reply.value is not None or reply.invalid_output
    return TYPED_OUTPUT_SCOPE if is_output else MODEL_TEXT_SCOPE


@cache
def _list_searched_fields(kind: type[Struct]) -> tuple[str, ...]:
    """Return the names of the fields of `kind` that may have a secret in them."""
    named, hints = (
        TOOL_DATA_FIELDS | TEXT_FIELDS | STRUCT_FIELDS | STRUCT_LIST_FIELDS,
        get_type_hints(kind),
    )
    return tuple(
        name
        for name in kind.__struct_fields__
        if name in named or {Reply, RequestedCall} & {hints[name], *get_args(hints[name])}
    )


def _redact_field(
    secrets: RunSecrets, name: str, value: object, text_scope: SearchScope
) -> Steps[object]:
    if not value:
        return value
    if isinstance(value, Reply):
        return (yield from secrets.redact_reply(value))
    if isinstance(value, RequestedCall):
        return (yield from secrets.redact_use(value, by_model=False))
    if name in STRUCT_FIELDS:
        return (yield from _redact_struct_in_steps(secrets, cast("Struct", value)))
    if name in STRUCT_LIST_FIELDS and isinstance(value, tuple):
        parts: list[object] = []
        for part in value:
            shown = yield from _redact_struct_in_steps(secrets, part)
            parts.append(shown)
        return value if all(map(is_, parts, value)) else tuple(parts)
    if name in TOOL_DATA_FIELDS:
        return (yield from secrets.redactor.redact_value(value))
    if name in TEXT_FIELDS and isinstance(value, str):
        return (yield from secrets.redactor.redact_value(value, text_scope))
    return value


async def redact_file(secret_registry: SecretRegistry, run: RunId, file: File) -> File:
    """Redact a text file like the text of a person; return any other file as it is.

    Nothing is searched in a file that is not UTF-8 text, nor in the name of a file.
    """
    if not secret_registry.is_enabled or not is_text_type(file.media_type):
        return file
    try:
        text = file.data.decode()
    except UnicodeDecodeError:
        return file
    redactor = secret_registry.get_run(run).redactor
    shown = await run_in_slices(redactor.redact_value(text, PERSON_TEXT_SCOPE))
    if shown is text or not isinstance(shown, str):
        return file
    return File(file.name, file.media_type, shown.encode())


async def redact_control(
    secret_registry: SecretRegistry, state: State, control: ControlT
) -> ControlT:
    """Redact a control, and remember the arguments that an approver edited."""
    # They need the traits of the call: its tool may declare some of them secret.
    if secret_registry.is_enabled and isinstance(control, Approve) and control.args is not None:
        ask = state.find_ask(control.ask)
        call = None if ask is None else state.find_call(ask.call)
        edited = RequestedCall(tool="") if call is None else call.use
        edited = RequestedCall(tool=edited.tool, args=control.args, traits=edited.traits)
        use = await run_in_slices(
            secret_registry.get_run(state.run).redact_use(edited, by_model=False)
        )
        control = replace(control, args=use.args)
    return await redact_struct(secret_registry, state.run, control)


# Titles of calls. They are rendered after the redaction, from arguments without secrets: a
# shortened or quoted secret could not be found in a finished title.


def add_title(
    secret_registry: SecretRegistry,
    run: RunId,
    agent: Agent,
    use: RequestedCall,
    tool: Tool | None = None,
) -> RequestedCall:
    """Return a redacted `use` with the title that its tool declares."""
    use = agent.add_title(use, tool)
    if not use.title or not secret_registry.is_enabled:
        return use
    # The title function may have added a secret that it read elsewhere.
    redactor = secret_registry.get_run(run).redactor
    return replace(use, title=run_steps(redactor.redact_value(use.title, MODEL_TEXT_SCOPE)))


def add_reply_titles(
    secret_registry: SecretRegistry, run: RunId, agent: Agent, driver_input: DriverInput
) -> DriverInput:
    """Return a redacted input with titles on the calls that its reply requests, if any."""
    match driver_input:
        case CloseCall(outcome=CallDone(reply=Reply(uses=(_, *_) as uses) as reply) as done):
            titled: list[RequestedCall] = []
            for use in uses:
                tool = agent.find_tool(use.tool)
                has_title = use.title or (tool is not None and tool.title is not None)
                titled.append(
                    add_title(secret_registry, run, agent, use, tool) if has_title else use
                )
            if all(map(is_, titled, uses)):
                return driver_input
            outcome = replace(done, reply=replace(reply, uses=tuple(titled)))
            return replace(driver_input, outcome=outcome)
        case _:
            return driver_input


class LiveRedactor:
    """Redacts live deltas, which come in pieces.

    A secret cannot be recognised before it is complete, and a piece that was shown cannot be
    taken back. So more is held back than in the journal:

    - Arguments are shown up to the first word that may be the name of a secret. Once the run
      has a secret, they are not shown at all.
    - Text is held back while its end may be the beginning of a known secret.
    - With the user's own search function, which wants whole texts, the output of a model is not
      shown before it is journaled.
    - A note of a tool comes whole, and is redacted like an entry.
    """

    def __init__(self, secret_registry: SecretRegistry) -> None:
        self._secret_registry = secret_registry
        self._held_back: LruDict[tuple[RunId, CallId, str], str | None] = LruDict(
            max_items=HELD_BACK_MAX_STREAMS
        )

    def redact_delta(self, delta: Delta) -> Delta | None:
        """Return the part of `delta` that may be shown now; None if there is none.

        An `opening` delta is searched from its beginning, and the deltas after it continue.
        """
        if not self._secret_registry.is_enabled or not delta.text:
            return delta
        if delta.opening:
            self._held_back.pop((delta.run, delta.call, delta.kind))
        secrets = self._secret_registry.get_run(delta.run)
        if delta.kind == "note":  # comes whole
            shown = run_steps(secrets.redactor.redact_value(delta.text))
        elif self._secret_registry.find_secrets is not None:
            return None
        elif delta.kind == "args":
            may_show = not secrets.has_secrets and self._may_show_args(delta)
            return delta if may_show else None
        else:
            shown = self._redact_text(secrets, delta)
        if shown is delta.text:
            return delta
        return replace(delta, text=shown) if shown else None

    def _may_show_args(self, delta: Delta) -> bool:
        """Tell whether the arguments so far have no word that may name a secret."""
        key = (delta.run, delta.call, "args")
        before = self._held_back.get(key, "")
        if before is None:  # a name was found before: nothing more of them is shown
            return False
        text = before + delta.text
        named = may_contain_secret_name(text)
        self._held_back.put(key, None if named else text[-ARGS_TAIL_CHARS:])
        return not named

    def _redact_text(self, secrets: RunSecrets, delta: Delta) -> str:
        if not secrets.has_secrets:
            return delta.text
        key = (delta.run, delta.call, delta.kind)
        # Prepend the text that was held back with the last delta, and hold back the new end.
        text = secrets.redact_all_known((self._held_back.pop(key) or "") + delta.text)
        keep = secrets.count_secret_start(text)
        if keep:
            self._held_back.put(key, text[-keep:])
            return text[:-keep]
        return text
