"""Large values are searched in slices: the result is the same, and others have their turn."""

from itertools import cycle

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from midrun.codec.redaction import SLICE_CHARS, run_steps, search_text
from midrun.core.driver_inputs import CloseCall
from midrun.core.entries import CallDone
from midrun.core.ids import CallId, Epoch, RunId
from midrun.core.placeholders import PLACEHOLDER
from midrun.core.values import Json
from midrun.driver import redaction as vaults
from midrun.driver.redaction import (
    SEARCHED_ONE_BY_ONE_MAX_SECRETS,
    SecretRegistry,
    redact_struct,
)

RUN = RunId("run_1")

PARTS = [
    "password", "api_key", "userPin", "token", "spin", "=", ":", "==", "::", " = ", '"', "'",
    '": "', "\\", "]", ">", "hunter2-x", "s3cr3t", "Bearer ", "basic ", "dXNlcjpwYXNz",
    "curl -u ", "me:hunter22", "https://", "@", "sk-", "4f5g6h7j8k9l0m1n2b", "ghp_",
    "16C7e42F292c6912E7710", "AKIA", "IOSFODNN7EXAMPLE", "eyJ", "hbGciOiJI.eyJzdWIiO",
    "-----BEGIN PRIVATE KEY-----", "MIIE-ow", "-----END PRIVATE KEY-----", " ", "\n", "é",
    "\U0001f511",
    "\ud800", ",", "x" * 50,
]  # fmt: skip

TEXTS = st.lists(st.sampled_from(PARTS), max_size=40).map("".join)


@given(text=TEXTS, size=st.integers(1, 200), names=st.booleans())
def test_slices_of_any_size_give_the_same_result(text: str, size: int, *, names: bool) -> None:
    """Wherever a name, a value or a shape is cut."""
    whole = run_steps(search_text(text, names=names))
    assert run_steps(search_text(text, names=names, slice_chars=size)) == whole


@given(
    secrets=st.lists(st.text("ab1é", min_size=6, max_size=12), min_size=1, max_size=60),
    words=st.lists(st.text("ab1é ", max_size=9), max_size=12),
    piece=st.integers(1, 40),
)
def test_known_secrets_are_found_in_pieces_as_in_the_whole(
    secrets: list[str], words: list[str], piece: int
) -> None:
    """Few are looked for one by one; of many, first by four of their bytes."""
    text = "".join(word + secret for word, secret in zip(words, cycle(secrets), strict=False))
    at = SecretRegistry(redact=True, key=b"k").get_run(RUN)
    for secret in secrets:
        at.redact(secret)
    whole = at.redact_all_known(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vaults, "SLICE_CHARS", piece)
        patch.setattr(vaults, "PIECE_CHARS", piece)
        patch.setattr(vaults, "SEARCHED_ONE_BY_ONE_MAX_SECRETS", 8)
        assert at.redact_all_known(text) == whole
    left = PLACEHOLDER.sub("|", whole)
    assert not [secret for secret in secrets if secret in left]


def test_of_many_secrets_each_is_found() -> None:
    """Wherever it begins."""
    at = SecretRegistry(redact=True, key=b"k").get_run(RUN)
    secrets = [f"{n:03}-hunter-{n * n}" for n in range(SEARCHED_ONE_BY_ONE_MAX_SECRETS * 4)]
    for secret in secrets:
        at.redact(secret)
    filler = "lorem ipsum " * (2 * SLICE_CHARS // len(secrets) // 12)
    text = "".join(f"{filler}{'x' * (n % 4)}{secret}" for n, secret in enumerate(secrets))
    shown = at.redact_all_known(text)
    assert shown.count("[redacted:") == len(secrets)


def test_a_text_that_is_made_of_secrets_is_hidden_from_there_on() -> None:
    """To look at each of a million would take longer than everything else."""
    at = SecretRegistry(redact=True, key=b"k").get_run(RUN)
    text = "It begins. " + "pin=12345 " * 20_000 + "the end"
    shown = run_steps(at.redactor.redact_value(text))
    assert isinstance(shown, str)
    assert "12345" not in shown
    assert "the end" not in shown
    assert len(shown) < len(text)


def test_a_long_list_of_addresses_is_left_alone() -> None:
    """What looks like a secret at first, and is none, is not counted."""
    at = SecretRegistry(redact=True, key=b"k").get_run(RUN)
    text = "".join(f"https://host{n}:8080/token\n" for n in range(20_000))
    assert run_steps(at.redactor.redact_value(text)) is text


TEXT = "an ordinary line of text: with a value = 7\n" * 60_000
LEAVES = [{"id": n, "name": f"item {n}"} for n in range(40_000)]


@pytest.mark.parametrize(
    ("value", "turns"),
    [
        pytest.param(TEXT, len(TEXT) // SLICE_CHARS, id="text"),
        pytest.param(LEAVES, 100, id="leaves"),
        pytest.param({"password": TEXT}, 10, id="secret"),
        pytest.param({"password": "hunter22", "t": TEXT}, len(TEXT) // SLICE_CHARS, id="known"),
    ],
)
async def test_others_have_their_turn_while_a_large_result_is_searched(
    value: Json, turns: int
) -> None:
    """Also where the search cannot be interrupted by a cancellation, which comes after it."""
    done = CloseCall(epoch=Epoch(1), outcome=CallDone(call=CallId("c1"), result=value))
    seen = 0
    over = False

    async def watch() -> None:
        nonlocal seen
        while not over:
            seen += 1
            await checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await checkpoint()
        with anyio.CancelScope() as scope:
            scope.cancel()
            hidden = await redact_struct(SecretRegistry(redact=True, key=b"k"), RUN, done)
        over = True
    assert isinstance(hidden, CloseCall)
    assert seen >= turns
