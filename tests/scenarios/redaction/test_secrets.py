"""What is a secret, what stands in its place, and who gets it back."""

import re
from collections.abc import Iterable
from itertools import cycle, zip_longest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midrun.codec.redaction import PERSON_TEXT_SCOPE, is_secret_name, run_steps
from midrun.core.controls import Approve, Say
from midrun.core.driver_inputs import CloseCall, FailRun
from midrun.core.entries import CallDone, CallFailed, RunStarted
from midrun.core.ids import AskId, CallId, Epoch, RunId
from midrun.core.placeholders import PLACEHOLDER
from midrun.core.state import State
from midrun.core.values import Json, Reply, Traits, Use
from midrun.driver.delta import Delta
from midrun.driver.redaction import (
    REMEMBERED_MAX_RUNS,
    RUN_MAX_SECRETS,
    SEARCHED_MIN_CHARS,
    LiveRedactor,
    RunSecrets,
    SecretRegistry,
    redact_control,
    redact_struct_now,
)

RUN = RunId("run_1")
SECRET = "hunter2-correct-horse"


def vault() -> SecretRegistry:
    """Return a vault that hides by name."""
    return SecretRegistry(redact=True, key=b"k")


def hides(value: Json) -> Json:
    """Return `value` as it is journaled."""
    return run_steps(vault().get_run(RUN).redactor.redact_value(value))


def placeholder(secret: str = SECRET) -> str:
    """Return what stands for a secret of the run."""
    return vault().get_run(RUN).redact(secret)


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
def test_a_field_that_is_named_for_a_secret_holds_one(name: str) -> None:
    """In whatever way it is written."""
    assert is_secret_name(name)
    assert hides({name: SECRET}) == {name: placeholder()}


@pytest.mark.parametrize(
    "name",
    [
        "next_page_token", "tokens", "max_tokens", "secretary", "author", "key", "name",
        "basic", "spin", "spinPoint", "oauth", "authors", "path", "pattern", "pins",
        "pinned", "adopt",
        "number", "string", "session", "id", "card", "keyboard",
    ],
)  # fmt: skip
def test_a_field_that_only_sounds_like_one_does_not(name: str) -> None:
    """What an agent needs for its work must reach it."""
    value = {name: SECRET}
    assert hides(value) is value


def test_whatever_is_inside_a_secret_is_secret() -> None:
    """However deep."""
    value = {"secrets": {"db": [SECRET, {"deep": SECRET}], "n": 7, "on": True}, "a": "b"}
    assert hides(value) == {
        "secrets": {"db": [placeholder(), {"deep": placeholder()}], "n": 7, "on": True},
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
    """Errors quote headers, addresses and configurations; tools return JSON as text."""
    assert hides(text.format(SECRET)) == left.format(placeholder())


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
def test_prose_about_secrets_is_left_alone(text: str) -> None:
    """A page about passwords is not one."""
    assert hides(text) is text


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
    """In data, in the words of people and in those of models."""
    text = f"It is {secret}"
    shown = f"It is {placeholder(secret)}"
    assert hides({"note": text}) == {"note": shown}
    assert redact_struct_now(vault(), RUN, Say(text=text)).text == shown
    reply = CloseCall(
        epoch=Epoch(1), outcome=CallDone(call=CallId("c1"), reply=Reply(text=text, opaque=text))
    )
    assert secret not in repr(redact_struct_now(vault(), RUN, reply))


def test_a_secret_in_the_task_is_found() -> None:
    """By a name before it, or by its shape."""
    started = RunStarted(agent="a", task=f"Log in with password={SECRET}, the pin is fine.")
    shown = redact_struct_now(vault(), RUN, started)
    assert shown.task == f"Log in with password={placeholder()}, the pin is fine."


def test_a_model_may_write_of_names_in_its_words() -> None:
    """An agent that explains a configuration file must not be garbled."""
    reply = Reply(text="Set password=changeme-first in app.ini")
    done = CloseCall(epoch=Epoch(1), outcome=CallDone(call=CallId("c1"), reply=reply))
    assert redact_struct_now(vault(), RUN, done) is done


def test_a_secret_is_hidden_also_where_it_stands_before_its_name() -> None:
    """One field of a result gives away what is in another."""
    assert hides({"log": f"used {SECRET}", "password": SECRET}) == {
        "log": f"used {placeholder()}",
        "password": placeholder(),
    }


def test_equal_secrets_look_equal_in_one_run_and_not_in_another() -> None:
    """So that repetition is noticed, and nothing is learnt by comparing runs."""
    one, other = vault().get_run(RUN), vault().get_run(RunId("run_2"))
    assert one.redact(SECRET) == vault().get_run(RUN).redact(SECRET)
    assert one.redact(SECRET) != one.redact("another")
    assert one.redact(SECRET) != other.redact(SECRET)
    assert SecretRegistry(redact=True, key=b"other").get_run(RUN).redact(SECRET) != one.redact(
        SECRET
    )


def test_a_secret_that_is_known_is_hidden_wherever_it_appears_next() -> None:
    """A model repeats in words what it has just passed on."""
    declared = Traits(secret=("password",))
    why = f"the password is {SECRET}"
    use = Use(tool="login", args={"password": SECRET}, why=why, traits=declared)
    opaque = {"parts": [{"args": f'{{"password": "{SECRET}"}}', "text": f"so {SECRET}"}]}
    reply = Reply(text=f"I use {SECRET}", thinking=SECRET, uses=(use,), opaque=opaque)
    done = CloseCall(epoch=Epoch(1), outcome=CallDone(call=CallId("c1"), reply=reply))
    assert SECRET not in repr(redact_struct_now(vault(), RUN, done))


def test_a_secret_that_begins_with_another_is_hidden_whole() -> None:
    """Its end would be left otherwise, and whoever knows the other has it all."""
    at = vault().get_run(RUN)
    at.redact("hunter2")
    at.redact("hunter2-and-more")
    shown = at.redact_all_known("hunter2-and-more, hunter2")
    assert shown == f"{placeholder('hunter2-and-more')}, {placeholder('hunter2')}"


def test_what_has_no_secret_is_the_very_same_object() -> None:
    """It costs a look, and no copy."""
    reply = Reply(text="I log in", uses=(Use(tool="login", args={"user": "ann"}),))
    done = CloseCall(epoch=Epoch(1), outcome=CallDone(call=CallId("c1"), reply=reply))
    assert redact_struct_now(vault(), RUN, done) is done


def test_errors_of_every_kind_are_covered() -> None:
    """Also those of evidence that has an error and nothing else."""
    error = f"KeyError: password={SECRET}"
    failed = CallFailed(call=CallId("c1"), error=error)
    for one in (
        CloseCall(epoch=Epoch(1), outcome=failed),
        FailRun(epoch=Epoch(1), error=error),
    ):
        assert SECRET not in repr(redact_struct_now(vault(), RUN, one))


def test_a_function_of_ones_own_finds_more() -> None:
    """Parts of any text, with the name of its field."""

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
    said = run_steps(secrets.redactor.redact_value("it is sk-123", PERSON_TEXT_SCOPE))
    assert said == f"it is {secrets.redact('sk-123')}"


def test_where_that_function_raises_nothing_is_shown() -> None:
    """What nobody could judge may be a secret."""

    def find(name: str, text: str) -> Iterable[str]:
        raise ZeroDivisionError(name, text)

    shown = run_steps(
        SecretRegistry(find, b"k").get_run(RUN).redactor.redact_value({"a": "harmless?"})
    )
    assert isinstance(shown, dict)
    assert PLACEHOLDER.fullmatch(shown["a"])


def test_without_redaction_nothing_is_hidden() -> None:
    """It can be turned off."""
    off = SecretRegistry(redact=False, key=b"k")
    given = FailRun(epoch=Epoch(1), error=f"password={SECRET}")
    assert redact_struct_now(off, RUN, given) is given


def test_what_nobody_could_store_is_not_looked_at() -> None:
    """A value that is nested a million times must not end the process."""
    deep: Json = SECRET
    for _ in range(100_000):
        deep = [deep]
    assert isinstance(hides(deep), str)


# ── giving back ──────────────────────────────────────────────────────────────


def journaled(secrets: RunSecrets, tool: str, args: Json) -> Json:
    """Return the arguments of a call as the journal has them."""
    return run_steps(secrets.redact_use(Use(tool=tool, args=args), by_model=True)).args


def test_a_tool_gets_what_the_model_wrote() -> None:
    """In every field, also one that only a function found."""
    secrets = SecretRegistry(lambda _, text: re.findall(r"sk-\w+", text), b"k").get_run(RUN)
    args = {"password": SECRET, "body": "the key is sk-123", "n": 1}
    kept = journaled(secrets, "login", args)
    assert "sk-123" not in repr(kept)
    assert secrets.restore_args(Use(tool="login", args=kept)) == args


def test_a_placeholder_is_taken_for_its_secret_only_where_one_belongs() -> None:
    """Or whoever can make a model write a mail could have a secret sent to them."""
    secrets = vault().get_run(RUN)
    journaled(secrets, "login", {"password": SECRET})
    copied = {
        "password": placeholder(),
        "body": f"it is {placeholder()}",
        "list": [placeholder()],
    }
    assert secrets.restore_args(Use(tool="send", args=copied)) == {**copied, "password": SECRET}


def test_what_another_process_has_hidden_is_missed() -> None:
    """A call with a placeholder in the place of a secret must not be made."""
    args = {"password": placeholder()}
    elsewhere = SecretRegistry(redact=True, key=b"k")
    assert elsewhere.has_lost_secrets(RUN, args)
    assert elsewhere.get_run(RUN).restore_args(Use(tool="login", args=args)) == args
    assert not elsewhere.has_lost_secrets(RUN, {"password": "none"})


async def test_what_a_person_edits_is_hidden_and_given_to_the_tool() -> None:
    """Whatever becomes of the ask: it does not reach the journal."""
    at = vault()
    control = Approve(ask=AskId("a1"), args={"password": SECRET})
    kept = await redact_control(at, State(run=RUN), control)
    assert SECRET not in repr(kept)
    assert at.get_run(RUN).restore_args(Use(tool="", args=kept.args)) == {"password": SECRET}
    said = await redact_control(at, State(run=RUN), Say(text=f"it is {SECRET}"))
    assert said.text == f"it is {placeholder()}"


def test_a_vault_does_not_grow_without_end() -> None:
    """The oldest secrets, and those of the runs that rest for the longest, are forgotten."""
    at = vault()
    for n in range(RUN_MAX_SECRETS + 5):
        at.get_run(RUN).redact(f"secret-{n}")
    assert len(at.get_run(RUN)._secret_by_placeholder) == RUN_MAX_SECRETS
    for n in range(REMEMBERED_MAX_RUNS + 5):
        at.get_run(RunId(f"run_{n}"))
    assert len(at._runs) == REMEMBERED_MAX_RUNS


# ── what is live ─────────────────────────────────────────────────────────────


def shown(screen: LiveRedactor, kind: str, *texts: str) -> str:
    """Return what is shown of a call that says `texts` one after the other."""
    deltas = (
        Delta(run=RUN, call=CallId("c1"), kind=kind, text=text)  # type: ignore[arg-type]  # one of them
        for text in texts
    )
    passed = (screen.redact_delta(delta) for delta in deltas)
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
def test_arguments_are_shown_up_to_a_name_that_may_be_a_secrets(pieces: list[str]) -> None:
    """However they are cut into pieces."""
    assert "hunter2" not in shown(LiveRedactor(vault()), "args", *pieces)


def test_arguments_without_such_a_name_are_shown() -> None:
    """As they come."""
    pieces = '{"pa', 'th": "x", "keywords": ["monkey"], "url": "https://ho', 'st"}'
    assert shown(LiveRedactor(vault()), "args", *pieces) == "".join(pieces)


def test_a_known_secret_is_hidden_in_text_that_comes_in_pieces() -> None:
    """Its beginning is held back until it is clear that it is none."""
    at = vault()
    at.get_run(RUN).redact(SECRET)
    for size in (1, 2, 3, 7, 100):
        text = f"use {SECRET} or hunter2-not, hunt"
        pieces = [text[n : n + size] for n in range(0, len(text), size)]
        assert (
            shown(LiveRedactor(at), "text", *pieces, "er!")
            == f"use {placeholder()} or hunter2-not, hunter!"
        )


@given(
    secrets=st.lists(
        st.text("ab1", min_size=SEARCHED_MIN_CHARS, max_size=9), min_size=1, max_size=3
    ),
    words=st.lists(st.text("ab1 ", max_size=9), max_size=4),
    cuts=st.lists(st.integers(1, 5), min_size=1, max_size=5),
)
def test_no_known_secret_is_ever_shown_however_the_text_is_cut(
    secrets: list[str], words: list[str], cuts: list[int]
) -> None:
    """Also where one is part of another, or begins where another ends."""
    at = vault()
    for secret in secrets:
        at.get_run(RUN).redact(secret)
    text = "".join(part for pair in zip_longest(words, secrets, fillvalue="") for part in pair)
    pieces, sizes = [], cycle(cuts)
    while text:
        size = next(sizes)
        pieces.append(text[:size])
        text = text[size:]
    seen = shown(LiveRedactor(at), "text", *pieces)
    assert not [secret for secret in secrets if secret in PLACEHOLDER.sub("|", seen)]


def test_with_a_function_of_ones_own_no_words_are_live() -> None:
    """It cannot judge half of what it is to find. Notes are whole, and come."""
    screen = LiveRedactor(SecretRegistry(lambda _, text: re.findall(r"sk-\w+", text), b"k"))
    assert not shown(screen, "text", "anything")
    assert shown(screen, "note", "no key") == "no key"
    assert "sk-1" not in shown(screen, "note", "a key: sk-123")
