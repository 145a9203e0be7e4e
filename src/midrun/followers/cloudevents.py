"""Bodies and signatures of webhook deliveries: CloudEvents 1.0, signed by Standard Webhooks.

The signature is an HMAC-SHA256 of the id, the time and the body. A receiver with the secret can
check that the delivery is authentic, complete and recent.
"""

import base64
import binascii
import hmac
from typing import Final

import msgspec
from msgspec import Struct

from midrun.core.entries import (
    Entry,
    Record,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunWaiting,
)
from midrun.core.ids import Micros, RunId, Seq, micros_to_datetime
from midrun.core.state import State
from midrun.core.values import Json
from midrun.errors import Misconfigured

CONTENT_TYPE: Final = "application/cloudevents+json; charset=utf-8"
EVENT_SOURCE: Final = "/v1/runs"
SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - marks a secret, is none
SECRET_MIN_BYTES: Final = 16
"""Minimum length of a secret in bytes; a shorter one can be guessed."""

TEXT_MAX_CHARS: Final = 4000
"""Maximum length of each text in a delivery, in characters: task, output, error, question."""


class Delivery(Struct, frozen=True, kw_only=True):
    """One webhook request. `id` is the same for every attempt to send it."""

    id: str
    seq: Seq
    body: bytes


def event_type(entry: Entry) -> str:
    """Return the CloudEvents type of an entry; "" if the entry is not delivered."""
    match entry:
        case RunWaiting():
            word = "waiting"
        case RunPaused(why="cap"):
            word = "paused"
        case RunFailed():
            word = "failed"
        case RunCompleted():
            word = "completed"
        case RunCancelled():
            word = "cancelled"
        case _:
            return ""
    return f"dev.midrun.run.{word}.v1"


def build_delivery(run: RunId, record: Record, state: State) -> Delivery:
    """Return the delivery for an entry; `state` is the run's state right after it."""
    id_ = f"{run}:{record.seq}"
    at = micros_to_datetime(record.at).isoformat(timespec="milliseconds")
    body = {
        "specversion": "1.0",
        "id": id_,
        "source": EVENT_SOURCE,
        "type": event_type(record.entry),
        "subject": run,
        "time": at.replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "data": _build_data(run, record, state),
    }
    return Delivery(id=id_, seq=record.seq, body=msgspec.json.encode(body))


def _build_data(run: RunId, record: Record, state: State) -> dict[str, Json]:
    spec = state.run_started
    data: dict[str, Json] = {
        "run_id": run,
        "seq": record.seq,
        "phase": state.phase,
        "agent": spec.agent,
        "task": spec.task[:TEXT_MAX_CHARS],
        "labels": list(spec.labels),
        "thread": spec.thread,
    }
    match record.entry:
        case RunWaiting():
            data["asks"] = [_build_ask(state, number) for number in state.open_asks]
        case RunPaused():
            data["cap"] = state.pause.cap_name if state.pause is not None else ""
        case RunFailed(error=error, code=code):
            data |= {"error": error[:TEXT_MAX_CHARS], "code": code}
        case RunCompleted(output=output):
            data["output"] = output[:TEXT_MAX_CHARS]
        case RunCancelled(residue=residue):
            data["not_undone"] = len(residue)
        case _:
            raise AssertionError(record.entry)
    return data


def _build_ask(state: State, number: int) -> dict[str, Json]:
    ask = state.asks[number - 1]
    call = state.find_call(ask.call)
    return {
        "id": ask.id,
        "kind": ask.effective_kind,
        "question": ask.question[:TEXT_MAX_CHARS],
        "tool": call.use.tool if call is not None else "",
        "audience": ask.audience,
    }


def decode_secret(secret: str) -> bytes:
    """Return the signing key of a secret: its bytes, or after `whsec_` its decoded base64.

    Raises:
        Misconfigured: the secret is too short, or not base64 after `whsec_`.
    """
    key = secret.encode()
    if secret.startswith(SECRET_PREFIX):
        try:
            key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        except binascii.Error:
            raise Misconfigured("webhook secret", "must be base64 after whsec_") from None
    if len(key) < SECRET_MIN_BYTES:
        problem = f"must have at least {SECRET_MIN_BYTES} bytes, got {len(key)}"
        raise Misconfigured("webhook secret", problem)
    return key


def sign_headers(delivery: Delivery, key: bytes, now: Micros) -> dict[str, str]:
    """Return the headers of a delivery that is sent at `now`, with its signature."""
    seconds = now // 1_000_000
    content = b"%b.%d.%b" % (delivery.id.encode(), seconds, delivery.body)
    mac = base64.b64encode(hmac.digest(key, content, "sha256")).decode()
    return {
        "Content-Type": CONTENT_TYPE,
        "webhook-id": delivery.id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": f"v1,{mac}",
    }
