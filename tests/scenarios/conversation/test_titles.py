"""A tool's title is journaled with each call, and used wherever the call is named."""

from midrun import Agent, Completed, Midrun, Tool, tool
from midrun.core.entries import AskAnswered, CallDone
from midrun.core.journaled_text import quote_title
from midrun.core.placeholders import PLACEHOLDER
from midrun.core.values import Json
from midrun.events import AskStarted, ToolFinished, ToolStarted
from midrun.models import ScriptedModel, Use
from tests.support.run_journal import read_entries, wait_for_entry
from tests.unit.runs.conftest import OpenMidrun

PASSWORD = "hunter2-correct-horse"


def name_login(args: dict[str, Json]) -> str:
    return f"Log in as {args['user']} with {args['password']}"


@tool(title="Send “{subject}” to {to}", approve=True)
async def send_mail(to: str, subject: str, body: str) -> str:
    """Send a mail."""
    return f"{to} {subject} {body}"


@tool(title=name_login)
async def log_in(user: str, password: str) -> str:
    """Log in."""
    return f"{user} {password == PASSWORD}"


@tool
async def list_files(folder: str) -> str:
    """List files."""
    return folder


MAIL = Use("send_mail", to="bo", subject="Hi", body="How are you?")


def make_agent(*turns: Use) -> Agent:
    tools: list[Tool] = [send_mail, log_in, list_files]
    return Agent("clerk", model=ScriptedModel([*turns, "Done."]), tools=tools)


async def test_every_surface_has_the_title(opened: OpenMidrun) -> None:
    """Also a process without the code of the tool, because the journal has it."""
    midrun: Midrun = await opened(make_agent(MAIL, Use("list_files", folder="in")))
    run = await midrun.start("clerk", "go")
    view = await run.until("waiting")
    title = "Send “Hi” to “bo”"
    quoted = quote_title(title)
    question = f"Approve {quoted}?"
    (ask,) = view.asks
    assert (ask.title, ask.question) == (title, question)
    assert ask.args == {"to": "bo", "subject": "Hi", "body": "How are you?"}  # all of them
    assert view.status.note == question
    await run.approve(actor="ada")
    assert isinstance(await run.result(), Completed)
    view = await run.view()
    assert [effect.title for effect in view.effects] == [title, "List files: folder “in”"]
    assert [call.title for call in (await run.report()).done] == [
        title,
        "List files: folder “in”",
    ]
    events = [event async for event in run.events()]
    asked = next(event for event in events if isinstance(event, AskStarted))
    assert asked.title == title
    assert f"asks for approval (a1): {quoted} (body: “How are you?" in asked.sentence
    started = next(event for event in events if isinstance(event, ToolStarted))
    assert started.sentence == f"the agent started {quoted}, approved by ada"
    finished = next(event for event in events if isinstance(event, ToolFinished))
    assert (finished.title, finished.who) == (title, quoted)


async def test_edited_arguments_get_a_new_title(opened: OpenMidrun) -> None:
    midrun = await opened(make_agent(MAIL))
    run = await midrun.start("clerk", "go")
    await run.until("waiting")
    args: dict[str, Json] = {"to": "eve", "subject": "Hi", "body": "Come."}
    await run.approve(args=args, actor="ada")
    assert isinstance(await run.result(), Completed)
    assert [call.title for call in (await run.report()).done] == ["Send “Hi” to “eve”"]
    (answered,) = await read_entries(run, AskAnswered)
    assert answered.title == "Send “Hi” to “eve”"


async def test_a_title_is_made_from_redacted_arguments(opened: OpenMidrun) -> None:
    """A shortened or quoted secret could not be found in a finished title."""
    midrun = await opened(make_agent(Use("log_in", user="bo", password=PASSWORD)))
    run = await midrun.start("clerk", "go")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    first = (await read_entries(run, CallDone))[0]
    assert first.reply is not None
    (use,) = first.reply.uses
    head, _, rest = use.title.partition(" with ")
    assert head == "Log in as bo"
    assert PLACEHOLDER.fullmatch(rest)
    result = next(done.result for done in await read_entries(run, CallDone) if done.result)
    assert result == "bo True"  # the tool had the password
    assert not any(PASSWORD.encode() in line for line in await run.export())


async def test_a_person_who_took_over_makes_titled_calls(opened: OpenMidrun) -> None:
    midrun = await opened(make_agent(MAIL))
    run = await midrun.start("clerk", "go")
    await run.until("waiting")
    await run.take_over(actor="ada")
    await run.use_tool("log_in", {"user": "bo", "password": PASSWORD}, actor="ada")
    await wait_for_entry(run, CallDone, 2)  # after the reply of the model
    view = await run.view()
    assert view.effects[-1].title.startswith("Log in as bo with ")
    assert PASSWORD not in view.effects[-1].title
