"""The search for secrets, their placeholders, and their return to the tools."""

import re
from collections.abc import Iterable
from itertools import cycle, zip_longest

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from midrun.codec.redaction import (
    PERSON_TEXT_SCOPE,
    SLICE_CHARS,
    is_secret_name,
    run_steps,
    search_text,
)
from midrun.core.controls import Approve, Say
from midrun.core.driver_inputs import CloseCall, FailRun, FinishHostedAgent
from midrun.core.entries import CallDone, CallFailed, RunStarted
from midrun.core.ids import AskId, CallId, Epoch, RunId
from midrun.core.placeholders import PLACEHOLDER
from midrun.core.state import State
from midrun.core.values import Json, Message, Reply, RequestedCall, Traits
from midrun.driver import redaction as driver_redaction
from midrun.driver.delta import Delta
from midrun.driver.redaction import (
    REMEMBERED_MAX_RUNS,
    RUN_MAX_SECRETS,
    SEARCHED_MIN_CHARS,
    SEARCHED_ONE_BY_ONE_MAX_SECRETS,
    LiveRedactor,
    RunSecrets,
    SecretRegistry,
    redact_control,
    redact_struct,
    redact_struct_now,
)

RUN = RunId("run_1")
SECRET = "hunter2-correct-horse"


def make_registry() -> SecretRegistry:
    """Return a registry with the default rules and a fixed key."""
    return SecretRegistry(redact=True, key=b"k")


def redact(value: Json) -> Json:
    """Return `value` with placeholders, as it is journaled."""
    return run_steps(make_registry().get_run(RUN).redactor.redact_value(value))


def make_placeholder(secret: str = SECRET) -> str:
    """Return the placeholder of a secret of the run."""
    return make_registry().get_run(RUN).redact(secret)


@pytest.mark.parametrize(
    "name",
    [
        "password", "Password", "user_password", "db-passwd", "token", "access_token",
        "refreshToken", "Authorization", "Proxy-Authorization", "Cookie", "Set-Cookie",
        "api_key", "X-Api-Key", "OPENAI_API_KEY", "apikey", "client_secret", "secrets",
        "private_key", "aws_secret_access_key", "credentials", "passphrase", "X-CSRF-Token",
        "jwt", "user_jwt", "auth", "basicAuth", "X-Auth", "pat", "githubPat", "otp", "otp_code",
        "pin", "userPin", "PIN", "pin-code", "passcode", "ssh_key", "hmac_key", "masterKey",
        "account_key", "dsn", "SENTRY_DSN", "connection_string", "connectionString",
        "session_id", "cvv", "card_number",
    ],
)  # fmt: skip
def test_a_field_with_the_name_of_a_secret_is_redacted(name: str) -> None:
    assert is_secret_name(name)
    assert redact({name: SECRET}) == {name: make_placeholder()}


@pytest.mark.parametrize(
    "name",
    [
        "next_page_token", "tokens", "max_tokens", "secretary", "author", "key", "name",
        "basic", "spin", "spinPoint", "oauth", "authors", "path", "pattern", "pins",
        "pinned", "adopt",
        "number", "string", "session", "id", "card", "keyboard",
    ],
)  # fmt: skip
def test_a_field_whose_name_only_resembles_a_secret_is_not_redacted(name: str) -> None:
    value = {name: SECRET}
    assert redact(value) is value


def test_all_texts_inside_a_secret_field_are_redacted() -> None:
    value = {"secrets": {"db": [SECRET, {"deep": SECRET}], "n": 7, "on": True}, "a": "b"}
    assert redact(value) == {
        "secrets": {
            "db": [make_placeholder(), {"deep": make_placeholder()}],
            "n": 7,
            "on": True,
        },
        "a": "b",
    }


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("GET /?api_key={} failed", "GET /?api_key={} failed"),
        ("{{'Authorization': 'Bearer {}'}}", "{{'Authorization': 'Bearer {}'}}"),
        ("Authorization: Bearer {}\nHost: x", "Authorization: Bearer {}\nHost: x"),
        ("https://me:{}@host/x", "https://me:{}@host/x"),
        ("password={}", "password={}"),
        ("ValueError: password={}", "ValueError: password={}"),
        ('{{"password": "{}"}}', '{{"password":"{}"}}'),
        ('[{{"a": {{"token": "{}"}}}}]', '[{{"a":{{"token":"{}"}}}}]'),
        ('{{"password": "{}", broken', '{{"password": "{}", broken'),
        ('params["password"] = "{}"', 'params["password"] = "{}"'),
        ("'password' => '{}'", "'password' => '{}'"),
        ("password := `x`; token := '{}'", "password := `x`; token := '{}'"),
        (r'"{{\"password\": \"{}\"}}"', r'"{{\"password\": \"{}\"}}"'),
        ("curl -u me:{} https://host", "curl -u me:{} https://host"),
        ("curl -X POST --user 'me:{}' h", "curl -X POST --user 'me:{}' h"),
    ],
)
def test_a_secret_in_a_text_is_found_by_the_name_before_it(text: str, left: str) -> None:
    """Errors contain headers, URLs and configurations; tools return JSON as text."""
    assert redact(text.format(SECRET)) == left.format(make_placeholder())


@pytest.mark.parametrize(
    "text",
    [
        "Your password: choose something strong.",
        "The secret: love.",
        "see https://host:8080/path and mail me@host",
        "tokens: 1024",
        "",
        "Basic understanding of Bearer authentication",
        "docker run -u 1000:1000 image",
        "if password == given: ok",
        "PASSWORD=$DB_PASSWORD run",
        "token: str, secret: bytes",
        "ask-learn-and-more-and-more",
        "================ token ================",
    ],
)
def test_prose_about_secrets_is_not_redacted(text: str) -> None:
    assert redact(text) is text


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-4f5g6h7j8k9l0m1n2b3v",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuv",
        "xoxb-17653672481-19874698323-pdFZKVeTuE8sk7oOcHrzqqgy",
        "AKIAIOSFODNN7EXAMPLE",
        "AIzaSyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4\n\nMII\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUA",
    ],
)
def test_a_secret_is_found_by_its_shape(secret: str) -> None:
    """In data, in messages of people and in replies of models."""
    text = f"It is {secret}"
    shown = f"It is {make_placeholder(secret)}"
    assert redact({"note": text}) == {"note": shown}
    assert redact_struct_now(make_registry(), RUN, Say(text=text)).text == shown
    reply = CloseCall(
        epoch=Epoch(1), outcome=CallDone(call=CallId("c1"), reply=Reply(text=text, opaque=text))
    )
    assert secret not in repr(redact_struct_now(make_registry(), RUN, reply))


def test_a_secret_in_the_task_is_found() -> None:
    started = RunStarted(agent="a", task=f"Log in with password={SECRET}, the pin is fine.")
    shown = redact_struct_now(make_registry(), RUN, started)
    assert shown.task == f"Log in with password={make_placeholder()}, the pin is fine."


def test_the_reply_of_a_model_is_not_searched_by_names() -> None:
    """A reply that explains a configuration file must stay readable."""
    reply = Reply(text="Set password=changeme-first in app.ini")
    done = CloseCall(epoch=Epoch(1), outcome=CallDone(call=CallId("c1"), reply=reply))
    assert redact_struct_now(make_registry(), RUN, done) is done


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"password": SECRET}, f'{{"password":"{SECRET}"}}'),
        (
            {"login": {"password": SECRET}},
            f'```json\n{{"login": {{"password": "{SECRET}"}}}}```',
        ),
        ({"user": "ann"}, f'{{"user": "ann", "password": "{SECRET}"}}'),  # a validator cut it
        (f"password={SECRET}", f"password={SECRET}"),
    ],
)
@pytest.mark.parametrize("opaque", [None, {"id": "r1"}])
def test_a_secret_in_a_typed_output_is_redacted(value: Json, text: str, opaque: Json) -> None:
    """A typed output is data. Its text is made from the redacted value."""
    reply = Reply(text=text, value=value, opaque=opaque)
    done = CloseCall(epoch=Epoch(1), outcome=CallDone(call=CallId("c1"), reply=reply))
    finish = FinishHostedAgent(epoch=Epoch(1), output=text, value=value)
    for driver_input in (done, finish):
        shown = repr(redact_struct_now(make_registry(), RUN, driver_input))
        assert SECRET not in shown
        assert make_placeholder() in shown
    shown_done = redact_struct_now(make_registry(), RUN, done).outcome
    assert isinstance(shown_done, CallDone)
    assert shown_done.reply is not None
    if isinstance(value, dict) and "password" in value:
        assert shown_done.reply.text == f'{{"password":"{make_placeholder()}"}}'


async def test_a_typed_output_is_searched_although_it_looks_clean() -> None:
    """`redact_struct` asks `is_clean_reply` first, which must look at the value, too."""
    text = f'{{"password":"{SECRET}"}}'
    for reply in (
        Reply(text="See the value.", value={"password": SECRET}),
        Reply(text=text, invalid_output="user is required"),
    ):
        done = CloseCall(epoch=Epoch(1), outcome=CallDone(call=CallId("c1"), reply=reply))
        assert SECRET not in repr(await redact_struct(make_registry(), RUN, done))


def test_an_imported_message_of_a_person_is_searched_like_a_task() -> None:
    """A message of the model is not, so that it can write about configuration."""
    said = f"Use password={SECRET}"
    history = (Message(role="user", text=said), Message(role="assistant", text="pin=changeme1"))
    started = RunStarted(agent="a", task="go", history=history)
    shown = redact_struct_now(make_registry(), RUN, started).history
    assert [m.text for m in shown] == [f"Use password={make_placeholder()}", "pin=changeme1"]


def test_a_secret_is_also_redacted_in_an_earlier_field_of_the_value() -> None:
    """The field name that marks it as a secret comes later in the same result."""
    assert redact({"log": f"used {SECRET}", "password": SECRET}) == {
        "log": f"used {make_placeholder()}",
        "password": make_placeholder(),
    }


def test_equal_secrets_have_the_same_placeholder_within_one_run_only() -> None:
    """A reader sees a repetition, but cannot compare the secrets of two runs."""
    first, second = make_registry().get_run(RUN), make_registry().get_run(RunId("run_2"))
    assert first.redact(SECRET) == make_registry().get_run(RUN).redact(SECRET)
    assert first.redact(SECRET) != first.redact("another")
    assert first.redact(SECRET) != second.redact(SECRET)
    other_key = SecretRegistry(redact=True, key=b"other").get_run(RUN)
    assert other_key.redact(SECRET) != first.redact(SECRET)


def test_a_known_secret_is_redacted_in_all_parts_of_a_reply() -> None:
    """A model may repeat an argument in its text, its thinking or its reason."""
    declared = Traits(secret=("password",))
    why = f"the password is {SECRET}"
    use = RequestedCall(tool="login", args={"password": SECRET}, why=why, traits=declared)
    opaque = {"parts": [{"args": f'{{"password": "{SECRET}"}}', "text": f"so {SECRET}"}]}
    reply = Reply(text=f"I use {SECRET}", thinking=SECRET, uses=(use,), opaque=opaque)
    done = CloseCall(epoch=Epoch(1), outcome=CallDone(call=CallId("c1"), reply=reply))
    assert SECRET not in repr(redact_struct_now(make_registry(), RUN, done))


def test_a_secret_that_starts_with_another_secret_is_redacted_as_a_whole() -> None:
    """Otherwise its second part would stay visible."""
    run_secrets = make_registry().get_run(RUN)
    run_secrets.redact("hunter2")
    run_secrets.redact("hunter2-and-more")
    shown = run_secrets.redact_all_known("hunter2-and-more, hunter2")
    assert shown == f"{make_placeholder('hunter2-and-more')}, {make_placeholder('hunter2')}"


def test_a_value_without_a_secret_is_not_copied() -> None:
    reply = Reply(text="I log in", uses=(RequestedCall(tool="login", args={"user": "ann"}),))
    done = CloseCall(epoch=Epoch(1), outcome=CallDone(call=CallId("c1"), reply=reply))
    assert redact_struct_now(make_registry(), RUN, done) is done


def test_a_secret_in_the_error_of_a_call_or_run_is_redacted() -> None:
    error = f"KeyError: password={SECRET}"
    failed = CallFailed(call=CallId("c1"), error=error)
    for driver_input in (
        CloseCall(epoch=Epoch(1), outcome=failed),
        FailRun(epoch=Epoch(1), error=error),
    ):
        assert SECRET not in repr(redact_struct_now(make_registry(), RUN, driver_input))


def test_a_redact_function_finds_secrets_in_addition_to_the_default_rules() -> None:
    """It gets the name and the text of each field, and returns parts of the text."""

    def find(name: str, text: str) -> Iterable[str]:
        return [text] if name == "iban" else re.findall(r"sk-\w+", text)

    secrets = SecretRegistry(find, b"k").get_run(RUN)
    value = {"iban": "DE02", "list": ["use sk-123 and sk-456"], "password": SECRET}
    shown = run_steps(secrets.redactor.redact_value(value))
    assert shown == {
        "iban": secrets.redact("DE02"),
        "list": [f"use {secrets.redact('sk-123')} and {secrets.redact('sk-456')}"],
        "password": secrets.redact(SECRET),
    }
    assert run_steps(secrets.redactor.redact_value(shown)) == shown
    message = run_steps(secrets.redactor.redact_value("it is sk-123", PERSON_TEXT_SCOPE))
    assert message == f"it is {secrets.redact('sk-123')}"


def test_a_text_is_redacted_as_a_whole_if_the_redact_function_raises() -> None:
    """A text that could not be searched may contain a secret."""

    def find(name: str, text: str) -> Iterable[str]:
        raise ZeroDivisionError(name, text)

    shown = run_steps(
        SecretRegistry(find, b"k").get_run(RUN).redactor.redact_value({"a": "harmless?"})
    )
    assert isinstance(shown, dict)
    assert PLACEHOLDER.fullmatch(shown["a"])


def test_with_redact_false_nothing_is_redacted() -> None:
    off = SecretRegistry(redact=False, key=b"k")
    given = FailRun(epoch=Epoch(1), error=f"password={SECRET}")
    assert redact_struct_now(off, RUN, given) is given


def test_a_value_that_is_nested_too_deeply_is_redacted_as_a_whole() -> None:
    """A recursive search of it would crash the process."""
    deep: Json = SECRET
    for _ in range(100_000):
        deep = [deep]
    assert isinstance(redact(deep), str)


# ── secrets that are restored for tools ───────────────────────────────────────────────────


def redact_args(secrets: RunSecrets, tool: str, args: Json) -> Json:
    """Return the arguments of a call as the journal has them."""
    return run_steps(
        secrets.redact_use(RequestedCall(tool=tool, args=args), by_model=True)
    ).args


def test_a_tool_gets_the_arguments_that_the_model_wrote() -> None:
    """Also in a field in which only the redact function found a secret."""
    secrets = SecretRegistry(lambda _, text: re.findall(r"sk-\w+", text), b"k").get_run(RUN)
    args = {"password": SECRET, "body": "the key is sk-123", "n": 1}
    redacted = redact_args(secrets, "login", args)
    assert "sk-123" not in repr(redacted)
    assert secrets.restore_args(RequestedCall(tool="login", args=redacted)) == args


def test_a_placeholder_is_restored_only_in_a_secret_field() -> None:
    """Otherwise an attacker could let the model mail a secret by its placeholder."""
    secrets = make_registry().get_run(RUN)
    redact_args(secrets, "login", {"password": SECRET})
    copied = {
        "password": make_placeholder(),
        "body": f"it is {make_placeholder()}",
        "list": [make_placeholder()],
    }
    assert secrets.restore_args(RequestedCall(tool="send", args=copied)) == {
        **copied,
        "password": SECRET,
    }


def test_a_placeholder_of_another_process_is_a_lost_secret() -> None:
    """The driver does not make a call with a lost secret."""
    args = {"password": make_placeholder()}
    registry = make_registry()
    assert registry.has_lost_secrets(RUN, args)
    assert registry.get_run(RUN).restore_args(RequestedCall(tool="login", args=args)) == args
    assert not registry.has_lost_secrets(RUN, {"password": "none"})


async def test_a_secret_in_edited_arguments_is_redacted_and_restored_for_the_tool() -> None:
    registry = make_registry()
    control = Approve(ask=AskId("a1"), args={"password": SECRET})
    redacted = await redact_control(registry, State(run=RUN), control)
    assert SECRET not in repr(redacted)
    assert registry.get_run(RUN).restore_args(RequestedCall(tool="", args=redacted.args)) == {
        "password": SECRET
    }
    say = await redact_control(registry, State(run=RUN), Say(text=f"it is {SECRET}"))
    assert say.text == f"it is {make_placeholder()}"


def test_the_registry_has_limits_for_secrets_and_runs() -> None:
    """It forgets the oldest secrets of a run, and the runs that were not used for longest."""
    registry = make_registry()
    for n in range(RUN_MAX_SECRETS + 5):
        registry.get_run(RUN).redact(f"secret-{n}")
    assert len(registry.get_run(RUN)._secret_by_placeholder) == RUN_MAX_SECRETS
    for n in range(REMEMBERED_MAX_RUNS + 5):
        registry.get_run(RunId(f"run_{n}"))
    assert len(registry._runs) == REMEMBERED_MAX_RUNS


# ── live output ───────────────────────────────────────────────────────────────────────────


def stream(redactor: LiveRedactor, kind: str, *texts: str) -> str:
    """Stream the texts as deltas of one call; return the text after redaction."""
    deltas = (
        Delta(run=RUN, call=CallId("c1"), kind=kind, text=text)  # type: ignore[arg-type]  # one of them
        for text in texts
    )
    passed = (redactor.redact_delta(delta) for delta in deltas)
    return "".join(delta.text for delta in passed if delta is not None)


@pytest.mark.parametrize(
    "pieces",
    [
        ['{"user": "ann", "pass', 'word": "', "hunter2"],
        ['{"user": "ann", "password": "hunter2"}'],
        ['{"user": "ann", "', "p", "a", "s", "s", "w", "o", "r", "d", '": "hunter2'],
        ['{"user": "ann", "pass\\u0077ord": "', "hunter2"],
    ],
)
def test_live_arguments_stop_before_the_value_of_a_secret_field(pieces: list[str]) -> None:
    """The field name may be split over several deltas or be escaped."""
    assert "hunter2" not in stream(LiveRedactor(make_registry()), "args", *pieces)


def test_live_arguments_without_a_secret_field_are_shown() -> None:
    pieces = '{"pa', 'th": "x", "keywords": ["monkey"], "url": "https://ho', 'st"}'
    assert stream(LiveRedactor(make_registry()), "args", *pieces) == "".join(pieces)


def test_a_known_secret_is_redacted_in_live_text_of_several_deltas() -> None:
    """A possible start of a secret is held back until the next delta decides."""
    registry = make_registry()
    registry.get_run(RUN).redact(SECRET)
    for size in (1, 2, 3, 7, 100):
        text = f"use {SECRET} or hunter2-not, hunt"
        pieces = [text[n : n + size] for n in range(0, len(text), size)]
        assert (
            stream(LiveRedactor(registry), "text", *pieces, "er!")
            == f"use {make_placeholder()} or hunter2-not, hunter!"
        )


@given(
    secrets=st.lists(
        st.text("ab1", min_size=SEARCHED_MIN_CHARS, max_size=9), min_size=1, max_size=3
    ),
    words=st.lists(st.text("ab1 ", max_size=9), max_size=4),
    cuts=st.lists(st.integers(1, 5), min_size=1, max_size=5),
)
def test_no_known_secret_is_shown_live_however_the_text_is_split(
    secrets: list[str], words: list[str], cuts: list[int]
) -> None:
    """Also if one secret is part of another, or starts where another ends."""
    registry = make_registry()
    for secret in secrets:
        registry.get_run(RUN).redact(secret)
    text = "".join(part for pair in zip_longest(words, secrets, fillvalue="") for part in pair)
    pieces, sizes = [], cycle(cuts)
    while text:
        size = next(sizes)
        pieces.append(text[:size])
        text = text[size:]
    seen = stream(LiveRedactor(registry), "text", *pieces)
    assert not [secret for secret in secrets if secret in PLACEHOLDER.sub("|", seen)]


def test_with_a_redact_function_live_text_is_not_shown_but_notes_are() -> None:
    """The function cannot search a part of a text. A note is complete."""
    redactor = LiveRedactor(SecretRegistry(lambda _, text: re.findall(r"sk-\w+", text), b"k"))
    assert not stream(redactor, "text", "anything")
    assert stream(redactor, "note", "no key") == "no key"
    assert "sk-1" not in stream(redactor, "note", "a key: sk-123")


TEXT_PARTS = [
    "password", "api_key", "userPin", "token", "spin", "=", ":", "==", "::", " = ", '"', "'",
    '": "', "\\", "]", ">", "hunter2-x", "s3cr3t", "Bearer ", "basic ", "dXNlcjpwYXNz",
    "curl -u ", "me:hunter22", "https://", "@", "sk-", "4f5g6h7j8k9l0m1n2b", "ghp_",
    "16C7e42F292c6912E7710", "AKIA", "IOSFODNN7EXAMPLE", "eyJ", "hbGciOiJI.eyJzdWIiO",
    "-----BEGIN PRIVATE KEY-----", "MIIE-ow", "-----END PRIVATE KEY-----", " ", "\n", "é",
    "\U0001f511",
    "\ud800", ",", "x" * 50,
]  # fmt: skip

TEXTS = st.lists(st.sampled_from(TEXT_PARTS), max_size=40).map("".join)


@given(text=TEXTS, size=st.integers(1, 200), names=st.booleans())
def test_slices_of_any_size_give_the_same_result(text: str, size: int, *, names: bool) -> None:
    """Also if a slice ends within a name, a value or a secret."""
    whole = run_steps(search_text(text, names=names))
    assert run_steps(search_text(text, names=names, slice_chars=size)) == whole


@given(
    secrets=st.lists(st.text("ab1é", min_size=6, max_size=12), min_size=1, max_size=60),
    words=st.lists(st.text("ab1é ", max_size=9), max_size=12),
    piece=st.integers(1, 40),
)
def test_known_secrets_are_found_in_slices_as_in_the_whole_text(
    secrets: list[str], words: list[str], piece: int
) -> None:
    """Few secrets are searched one by one, many by an index of four bytes."""
    text = "".join(word + secret for word, secret in zip(words, cycle(secrets), strict=False))
    run_secrets = make_registry().get_run(RUN)
    for secret in secrets:
        run_secrets.redact(secret)
    whole = run_secrets.redact_all_known(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver_redaction, "SLICE_CHARS", piece)
        patch.setattr(driver_redaction, "PIECE_CHARS", piece)
        patch.setattr(driver_redaction, "SEARCHED_ONE_BY_ONE_MAX_SECRETS", 8)
        assert run_secrets.redact_all_known(text) == whole
    left = PLACEHOLDER.sub("|", whole)
    assert not [secret for secret in secrets if secret in left]


def test_each_of_many_secrets_is_found_at_any_offset() -> None:
    run_secrets = make_registry().get_run(RUN)
    secrets = [f"{n:03}-hunter-{n * n}" for n in range(SEARCHED_ONE_BY_ONE_MAX_SECRETS * 4)]
    for secret in secrets:
        run_secrets.redact(secret)
    filler = "lorem ipsum " * (2 * SLICE_CHARS // len(secrets) // 12)
    text = "".join(f"{filler}{'x' * (n % 4)}{secret}" for n, secret in enumerate(secrets))
    shown = run_secrets.redact_all_known(text)
    assert shown.count("[redacted:") == len(secrets)


def test_a_text_with_too_many_secrets_is_redacted_from_there_on() -> None:
    """A search of each of a million secrets would take too long."""
    run_secrets = make_registry().get_run(RUN)
    text = "It begins. " + "pin=12345 " * 20_000 + "the end"
    shown = run_steps(run_secrets.redactor.redact_value(text))
    assert isinstance(shown, str)
    assert "12345" not in shown
    assert "the end" not in shown
    assert len(shown) < len(text)


def test_a_long_list_of_urls_is_not_redacted() -> None:
    """A candidate that is not a secret does not count towards the limit of secrets."""
    run_secrets = make_registry().get_run(RUN)
    text = "".join(f"https://host{n}:8080/token\n" for n in range(20_000))
    assert run_steps(run_secrets.redactor.redact_value(text)) is text


LARGE_TEXT = "an ordinary line of text: with a value = 7\n" * 60_000
MANY_ITEMS = [{"id": n, "name": f"item {n}"} for n in range(40_000)]


@pytest.mark.parametrize(
    ("value", "turns"),
    [
        pytest.param(LARGE_TEXT, len(LARGE_TEXT) // SLICE_CHARS, id="text"),
        pytest.param(MANY_ITEMS, 100, id="leaves"),
        pytest.param({"password": LARGE_TEXT}, 10, id="secret"),
        pytest.param(
            {"password": "hunter22", "t": LARGE_TEXT},
            len(LARGE_TEXT) // SLICE_CHARS,
            id="known",
        ),
    ],
)
async def test_other_tasks_run_while_a_large_result_is_searched(
    value: Json, turns: int
) -> None:
    """Also in a cancelled scope: the search is shielded, and the cancellation comes later."""
    done = CloseCall(epoch=Epoch(1), outcome=CallDone(call=CallId("c1"), result=value))
    turns_seen = 0
    is_done = False

    async def watch() -> None:
        nonlocal turns_seen
        while not is_done:
            turns_seen += 1
            await checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await checkpoint()
        with anyio.CancelScope() as scope:
            scope.cancel()
            redacted = await redact_struct(make_registry(), RUN, done)
        is_done = True
    assert isinstance(redacted, CloseCall)
    assert turns_seen >= turns
