"""Approve calls of agents in Slack or by e-mail: a small web application beside Midrun.

    uvicorn app:app --port 8800        # in this folder

Midrun posts a webhook to /midrun when a run waits for a person. The application posts each
open approval to a channel: the title of the call, all of its arguments, and the artifacts of
the run. Slack posts the click on a button to /slack. The application decides with the Midrun
token of the person who clicked, so that Midrun knows who decided, and its rules apply: the
audience, four eyes, one winner. A person who clicks too late is told who was first. The message
then shows the decision, and has no more buttons.

An e-mail has the same content and a link to the run's page, where the person signs in and
decides. It has no button that decides: everyone who gets the mail forwarded could press it.

Settings, as environment variables:

    MIDRUN_URL            address of the Midrun server
    MIDRUN_HOOK_SECRET    secret of the webhook
    SLACK_BOT_TOKEN       token of the Slack app, with the scope chat:write
    SLACK_SIGNING_SECRET  signs the requests of Slack
    SLACK_CHANNEL         channel for the approvals
    PEOPLE                JSON: id of a Slack user → Midrun token of this person
    READER_TOKEN          Midrun token of an operator, to read the asks of all runs
    MAIL_SERVER           optional: host:port of an SMTP server
    MAIL_TO               the receiver of the mails
"""

import base64
import hmac
import json
import os
import smtplib
import time
from collections.abc import Mapping
from email.message import EmailMessage
from urllib.parse import parse_qs

import anyio.to_thread
import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from midrun import ControlRefused, connect
from midrun.errors import MidrunError

MAX_AGE_S = 300  # an older request may be a copy that an attacker has kept
SECTION_MAX_CHARS = 3000  # Slack refuses longer ones
ARGUMENTS_MAX_CHARS = 500  # each character may become five when it is escaped
SLACK_API = os.environ.get("SLACK_API", "https://slack.com/api")


# ── from Midrun to Slack ─────────────────────────────────────────────────────


async def receive_webhook(request: Request) -> Response:
    """Post the open approvals of a run that waits."""
    body = await request.body()
    if not is_signed_by_midrun(request.headers, body):
        return Response("The signature is wrong.", 401)
    event = json.loads(body)
    if event["type"] == "dev.midrun.run.waiting.v1":
        await post_approvals(event["data"]["run_id"])
    return Response(status_code=204)


async def post_approvals(run_id: str) -> None:
    """Send each approval that is still open and was not sent before."""
    async with connect(os.environ["MIDRUN_URL"], token=os.environ["READER_TOKEN"]) as midrun:
        run = await midrun.get(run_id)
        view = await run.view()
        shown = [f"{one.name} (version {one.version})" for one in await run.artifacts()]
    for ask in view.asks:
        if ask.effective_kind != "approval":
            continue
        key = f"{run_id}/{ask.id}"
        lines = [f"{view.agent}: {view.task}"]
        lines += [f"Why: {ask.why}"] if ask.why else []
        lines += [f"Artifacts: {', '.join(shown)}"] if shown else []
        arguments = json.dumps(ask.args, indent=2, ensure_ascii=False)
        if (key, "slack") not in SENT:
            await post_to_slack(key, ask.title, "\n".join(lines), arguments)
            SENT.add((key, "slack"))
        if "MAIL_SERVER" in os.environ and (key, "mail") not in SENT:
            text = "\n\n".join([*lines, arguments, f"Decide here: {make_link(run_id)}"])
            await anyio.to_thread.run_sync(send_mail, ask.title, text)
            SENT.add((key, "mail"))


async def post_to_slack(key: str, title: str, about: str, arguments: str) -> None:
    """Post one approval to the channel."""
    blocks = [make_section(f"*{escape(title)}*\n{escape(about)}")]
    if len(arguments) <= ARGUMENTS_MAX_CHARS:
        buttons = [make_button(word, key) for word in ("approve", "decline")]
        blocks.append(make_section(f"```{escape(arguments)}```"))
        blocks.append({"type": "actions", "elements": buttons})
    else:  # a person must see every argument before they approve
        link = make_link(key.partition("/")[0])
        text = f"The arguments are too long for Slack. Decide here: {link}"
        blocks.append(make_section(text))
    await call_slack(
        "chat.postMessage",
        channel=os.environ["SLACK_CHANNEL"],
        text=f"Approval needed: {escape(title)}",  # for notifications
        blocks=blocks,
    )


def send_mail(title: str, text: str) -> None:
    """Send one approval as a mail."""
    mail = EmailMessage()
    mail["Subject"] = f"Approval needed: {' '.join(title.split())}"
    mail["From"] = mail["To"] = os.environ["MAIL_TO"]
    mail.set_content(text)
    with smtplib.SMTP(
        os.environ["MAIL_SERVER"], local_hostname="localhost", timeout=30
    ) as server:
        server.send_message(mail)


def make_link(run_id: str) -> str:
    """Return the address of the run's page."""
    return f"{os.environ['MIDRUN_URL']}/runs/{run_id}"


# Midrun delivers a webhook again if this application failed or was stopped. After a restart an
# approval may be sent a second time; a second click on it is refused like every late one.
SENT: set[tuple[str, str]] = set()


# ── from Slack to Midrun ─────────────────────────────────────────────────────


async def receive_click(request: Request) -> Response:
    """Decide with the token of the person who clicked, and show the decision."""
    body = await request.body()
    if not is_signed_by_slack(request.headers, body):
        return Response("The signature is wrong.", 401)
    click = json.loads(parse_qs(body.decode())["payload"][0])
    action, user = click["actions"][0], click["user"]["id"]
    token = json.loads(os.environ["PEOPLE"]).get(user)
    if token is None:
        await answer_privately(click, "You have no account in Midrun. Ask an operator for one.")
        return Response(status_code=200)
    run_id, ask_id = action["value"].split("/")
    try:
        async with connect(os.environ["MIDRUN_URL"], token=token) as midrun:
            run = await midrun.get(run_id)
            # Slack may send a click again: with the same id it is applied once.
            options = {"ask": ask_id, "request_id": f"slack-{click['trigger_id']}"}
            if action["action_id"] == "approve":
                await run.approve(**options)
                decision = f"Approved by <@{user}>"
            else:
                await run.decline(f"Declined in Slack by {user}", **options)
                decision = f"Declined by <@{user}>"
    except ControlRefused as refused:
        await answer_privately(click, f"Your click came too late. {refused}")
        decision = f"Decided by {refused.by}" if refused.by else "No longer open"
    except MidrunError as error:
        await answer_privately(click, str(error))
        return Response(status_code=200)
    kept = [block for block in click["message"]["blocks"] if block["type"] != "actions"]
    await call_slack(
        "chat.update",
        channel=click["channel"]["id"],
        ts=click["message"]["ts"],
        text=decision,
        blocks=[*kept, make_section(f"*{decision}*")],
    )
    return Response(status_code=200)


async def answer_privately(click: Mapping[str, object], text: str) -> None:
    """Show a text to the person who clicked, and to no one else."""
    async with httpx2.AsyncClient() as http:
        reply = {"response_type": "ephemeral", "replace_original": False, "text": escape(text)}
        await http.post(str(click["response_url"]), json=reply)


# ── Slack's format ───────────────────────────────────────────────────────────


async def call_slack(method: str, **fields: object) -> None:
    """Call a method of the Web API."""
    headers = {"authorization": f"Bearer {os.environ['SLACK_BOT_TOKEN']}"}
    async with httpx2.AsyncClient() as http:
        reply = await http.post(f"{SLACK_API}/{method}", json=fields, headers=headers)
    problem = reply.json()
    if not problem.get("ok"):
        raise RuntimeError(f"Slack refused {method}: {problem.get('error')}")


def make_section(text: str) -> dict[str, object]:
    """Return a block with a text."""
    return {"type": "section", "text": {"type": "mrkdwn", "text": text[:SECTION_MAX_CHARS]}}


def make_button(action: str, value: str) -> dict[str, object]:
    """Return a button; `action` is "approve" or "decline"."""
    return {
        "type": "button",
        "action_id": action,
        "value": value,
        "text": {"type": "plain_text", "text": action.capitalize()},
        "style": "primary" if action == "approve" else "danger",
    }


def escape(text: str) -> str:
    """Return text in which Slack finds no links and no mentions."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


# ── signatures ───────────────────────────────────────────────────────────────


def is_signed_by_midrun(headers: Mapping[str, str], body: bytes) -> bool:
    """Check the signature of Standard Webhooks."""
    key = base64.b64decode(os.environ["MIDRUN_HOOK_SECRET"].removeprefix("whsec_"))
    sent = headers.get("webhook-timestamp", "0")
    content = f"{headers.get('webhook-id', '')}.{sent}.".encode() + body
    expected = "v1," + base64.b64encode(hmac.digest(key, content, "sha256")).decode()
    given = headers.get("webhook-signature", "")
    return is_fresh(sent) and hmac.compare_digest(expected.encode(), given.encode())


def is_signed_by_slack(headers: Mapping[str, str], body: bytes) -> bool:
    """Check the signature of a request of Slack."""
    sent = headers.get("x-slack-request-timestamp", "0")
    key = os.environ["SLACK_SIGNING_SECRET"].encode()
    expected = "v0=" + hmac.digest(key, f"v0:{sent}:".encode() + body, "sha256").hex()
    given = headers.get("x-slack-signature", "")
    return is_fresh(sent) and hmac.compare_digest(expected.encode(), given.encode())


def is_fresh(sent: str) -> bool:
    """Tell whether a request was signed in the last minutes."""
    now = time.time()  # noqa: TID251 - no part of Midrun
    return sent.isdecimal() and abs(now - int(sent)) < MAX_AGE_S


app = Starlette(
    routes=[
        Route("/midrun", receive_webhook, methods=["POST"]),
        Route("/slack", receive_click, methods=["POST"]),
    ]
)
