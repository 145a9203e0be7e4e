"""Ask the person at an MCP client: an open ask as a form, and the response as a decision.

A form of MCP is flat: its fields are texts, numbers, booleans and choices. An approval has the
choice to approve or to decline, and the reason. A question with a flat form of its own (one of
another MCP server) is passed on; any other has one field. The decision is sent as a control, so
the store or the server checks it: another person may have decided first.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final, cast

from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult

from midrun.agents.outcome import AskView
from midrun.core.decide.asks import HAPPENED_BY_ANSWER
from midrun.core.values import Json
from midrun.errors import Misconfigured
from midrun.mcp_server.run_tools import RunAccess
from midrun.runs.control_bodies import Decision, DecisionBody
from midrun.runs.control_specs import DECISIONS, ControlTarget
from midrun.runs.protocols import AnyRun
from midrun.runs.validation import ControlOptions
from midrun.text.hidden_characters import show_hidden

FIELD_TYPES: Final = frozenset({"string", "number", "integer", "boolean"})
"""Types of a form's fields. A choice of several values (`array`) is not supported by clients of
older protocols, so a question with one is asked as text."""


def make_form(ask: AskView) -> ElicitRequest:
    """Return the form to show to a person for an ask."""
    params = ElicitRequestFormParams(
        message=_format_question(ask), requested_schema=_make_schema(ask)
    )
    return ElicitRequest(params=params)


def _format_question(ask: AskView) -> str:
    lines = [ask.question] if ask.question else []
    match ask.effective_kind:
        case "approval":
            lines.append(f"The agent wants to make this call: {ask.title or ask.tool}")
        case "unsure":
            lines.append(f"Did this call take effect? {ask.title or ask.tool}")
        case _:
            pass
    if ask.effective_kind in {"approval", "unsure"}:
        # The title never stands alone: the decision is about the tool and its arguments.
        arguments = json.dumps(ask.args, ensure_ascii=False)
        lines.append(f"Tool: {ask.tool}\nArguments: {arguments}")
    if ask.why:
        lines.append(f"Reason of the agent: {ask.why}")
    if ask.hidden:
        lines.append(ask.hidden)
    return show_hidden("\n".join(lines) or "The run needs an answer.")


def _make_schema(ask: AskView) -> dict[str, object]:
    if ask.effective_kind == "approval":
        fields: dict[str, Json] = {
            "decision": {"type": "string", "enum": ["approve", "decline"]},
            "reason": {"type": "string", "description": "the agent reads it, if you decline"},
        }
        return {"type": "object", "properties": fields, "required": ["decision"]}
    if own := _find_own_form(ask):
        return {"type": "object", **own}
    choices = list(HAPPENED_BY_ANSWER) if ask.effective_kind == "unsure" else _list_options(ask)
    answer: dict[str, Json] = {"type": "string", "title": "Answer"}
    if choices:
        answer["enum"] = choices
    return {"type": "object", "properties": {"answer": answer}, "required": ["answer"]}


def _find_own_form(ask: AskView) -> dict[str, object]:
    """Return the fields of a question's own form, if a client can show all of them."""
    data = ask.data if isinstance(ask.data, dict) else {}
    properties = data.get("properties")
    if not isinstance(properties, dict) or not properties:
        return {}
    for field in properties.values():
        if not isinstance(field, dict) or field.get("type") not in FIELD_TYPES:
            return {}
    required = data.get("required")
    return {
        "properties": properties,
        "required": required if isinstance(required, list) else [],
    }


def _list_options(ask: AskView) -> list[Json]:
    data = ask.data if isinstance(ask.data, dict) else {}
    options = data.get("options")
    if not isinstance(options, list) or not all(isinstance(each, str) for each in options):
        return []
    return options


async def find_decidable_asks(
    access: RunAccess, run: AnyRun, asks: Sequence[AskView]
) -> list[AskView]:
    """Return the asks that the caller may decide; a person is not asked in vain."""
    mine = {
        each.id
        for each in await access.midrun.asks()
        if each.run_id == run.id and each.may_decide
    }
    return [ask for ask in asks if ask.id in mine]


async def send_response(
    access: RunAccess, run: AnyRun, ask: AskView, response: ElicitResult
) -> None:
    """Send the decision of a person; nothing if the form was dismissed.

    Raises:
        ControlRefused: The ask has been decided, or the caller may not decide it.
        Misconfigured: The form was accepted without an answer.
    """
    body = _read_decision(ask, response)
    if body is not None:
        options = ControlOptions(actor=access.actor, reason=body.reason)
        await DECISIONS[body.decision].send(ControlTarget(run, ask.id), body, options)


def _read_decision(ask: AskView, response: ElicitResult) -> DecisionBody | None:
    content = cast("Mapping[str, Json]", response.content or {})
    is_approval = ask.effective_kind == "approval"
    if response.action == "cancel":
        return None
    if response.action == "decline":
        may_decline = is_approval or ask.declinable
        return DecisionBody(decision="decline") if may_decline else None
    if is_approval:
        # Accepting the form is not an approval: the choice in it is.
        decision: Decision = "approve" if content.get("decision") == "approve" else "decline"
        comment = str(content.get("reason") or "") if decision == "decline" else ""
        return DecisionBody(decision=decision, comment=comment)
    if _find_own_form(ask):
        return DecisionBody(decision="answer", value=dict(content))
    if "answer" not in content:
        problem = f"Cannot decide {ask.id}: the form has no `answer`. Fill it in again"
        raise Misconfigured("elicitation", problem)
    return DecisionBody(decision="answer", value=content["answer"])
