"""Arguments that are hidden from the approver of a call."""

from dataclasses import dataclass

import pytest

from midrun import Agent, ControlRefused, Midrun, Misconfigured, Tool, tool
from midrun.cli.output import format_ask
from midrun.core.placeholders import PLACEHOLDER
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line
from midrun.runs.run import Run
from midrun.tui.bar import draw_ask_dialog

pytestmark = pytest.mark.usefixtures("time_limit")

ATTACKER_IBAN = "DE89-3704-0044-0532"
OWN_IBAN = "DE02-1203-0000-0000"


@dataclass
class Server:
    """The type of a parameter, with a secret field."""

    host: str
    password: str


class Bank:
    """Tools of a bank, and the arguments that they received."""

    def __init__(self) -> None:
        self.received_args: list[object] = []

    def agent(self, *turns: Line, name: str = "clerk") -> Agent:
        """Return an agent with these tools and a scripted model."""
        tools: list[Tool] = [
            tool(self._search, name="search"),
            tool(self._look_up, name="look_up"),
            tool(self._wire, name="wire", approve=True),
            tool(self._wire, name="wire_iban", approve=True, secret=["to"]),
            tool(self._log_in, name="log_in", approve=True),
        ]
        return Agent(name, model=ScriptedModel(turns), tools=tools)

    async def _search(self, filters: dict[str, str]) -> str:
        """Search."""
        return f"nothing, of {len(filters)}"

    async def _look_up(self) -> dict[str, str]:
        """Read a page that an attacker wrote."""
        return {"password": ATTACKER_IBAN}

    async def _wire(self, to: str, options: dict[str, str] | None = None) -> str:
        """Wire money."""
        self.received_args.append(to if options is None else (to, options))
        return "wired"

    async def _log_in(self, server: Server) -> str:
        """Log in."""
        self.received_args.append((server.host, server.password))
        return "in"


async def start_and_wait(midrun: Midrun, agent: Agent) -> Run:
    """Start a run, and wait until it needs an approval."""
    run = await midrun.start(agent, "Pay the bill.")
    await run.until("waiting")
    return run


async def test_a_value_that_the_model_calls_a_password_is_hidden_only_there() -> None:
    """Otherwise a model could hide the target account of a payment from the approver."""
    bank = Bank()
    agent = bank.agent(
        Use("search", filters={"password": ATTACKER_IBAN}),
        Use("wire", to=ATTACKER_IBAN),
        "Done.",
    )
    async with Midrun("memory://", agents=[agent]) as midrun:
        run = await start_and_wait(midrun, agent)
        (ask,) = (await run.view()).asks
        assert ask.args == {"to": ATTACKER_IBAN}
        assert ask.hidden == ""
        stored = [line.decode() for line, _ in await midrun.store.read_lines(run.id)]
        assert not any("password" in line and ATTACKER_IBAN in line for line in stored)
        await run.approve()
        await run.until("completed")
    assert bank.received_args == [ATTACKER_IBAN]


async def test_a_hidden_argument_that_its_tool_does_not_declare_cannot_be_approved() -> None:
    """The approver can replace the argument or decline the call."""
    bank = Bank()
    agent = bank.agent(Use("look_up"), Use("wire", to=ATTACKER_IBAN), "Done.")
    async with Midrun("memory://", agents=[agent]) as midrun:
        run = await start_and_wait(midrun, agent)
        (ask,) = (await run.view()).asks
        assert isinstance(ask.args, dict)
        assert PLACEHOLDER.fullmatch(ask.args["to"])
        assert "Cannot be approved as it is: to is hidden" in ask.hidden
        with pytest.raises(ControlRefused, match="to is hidden, and tool wire") as refused:
            await run.approve()
        assert refused.value.reason == "hidden_argument"
        with pytest.raises(ControlRefused):  # the same secret again
            await run.approve(args={"to": ATTACKER_IBAN})
        with pytest.raises(
            ControlRefused
        ):  # a secret in a field that the tool does not declare
            await run.approve(args={"to": OWN_IBAN, "options": {"password": "hunter22"}})
        await run.approve(args={"to": OWN_IBAN})
        await run.until("completed")
    assert bank.received_args == [OWN_IBAN]


async def test_a_call_with_a_hidden_argument_can_be_declined() -> None:
    bank = Bank()
    agent = bank.agent(Use("look_up"), Use("wire", to=ATTACKER_IBAN), "Done.")
    async with Midrun("memory://", agents=[agent]) as midrun:
        run = await start_and_wait(midrun, agent)
        await run.decline("I cannot see the account")
        await run.until("completed")
    assert bank.received_args == []


@pytest.mark.parametrize(
    ("use", "path", "given"),
    [
        (Use("wire_iban", to=OWN_IBAN), "to", OWN_IBAN),
        (
            Use("log_in", server={"host": "h", "password": OWN_IBAN}),
            "server.password",
            ("h", OWN_IBAN),
        ),
    ],
)
async def test_a_hidden_argument_that_its_tool_declares_secret_can_be_approved(
    use: Use, path: str, given: object
) -> None:
    """A tool declares a secret by the field name in its schema, or with `secret=`."""
    bank = Bank()
    agent = bank.agent(use, f"I used {OWN_IBAN}.")
    async with Midrun("memory://", agents=[agent]) as midrun:
        run = await start_and_wait(midrun, agent)
        (ask,) = (await run.view()).asks
        expected = f"Hidden from you: {path}; tool {use.tool} declares it secret."
        assert ask.hidden == expected
        await run.approve()
        view = await run.until("completed")
        stored = b"".join(line for line, _ in await midrun.store.read_lines(run.id))
    assert bank.received_args == [given]
    assert OWN_IBAN.encode() not in stored
    assert view.output.startswith("I used [redacted:")


async def test_a_hidden_argument_of_a_child_run_cannot_be_approved_on_its_parent() -> None:
    """The ask of a child is opened on its parent with the same text."""
    bank = Bank()
    inner = bank.agent(Use("look_up"), Use("wire", to=ATTACKER_IBAN), "Done.", name="inner")
    outer = Agent(
        "outer",
        model=ScriptedModel([Use("inner", task="Pay."), "Done."]),
        tools=[inner.as_tool()],
    )
    async with Midrun("memory://", agents=[outer, inner]) as midrun:
        run = await start_and_wait(midrun, outer)
        (ask,) = (await run.view()).asks
        assert "to is hidden" in ask.hidden
        with pytest.raises(ControlRefused) as refused:
            await run.approve()
        assert refused.value.reason == "hidden_argument"
        await run.decline("no")
        await run.until("completed")
    assert bank.received_args == []


async def test_the_terminal_and_the_command_line_name_hidden_arguments() -> None:
    agent = Bank().agent(Use("wire_iban", to=OWN_IBAN), "Done.")
    async with Midrun("memory://", agents=[agent]) as midrun:
        run = await start_and_wait(midrun, agent)
        (ask,) = (await run.view()).asks
        (open_ask,) = await midrun.asks()
    dialog = " ".join(text for row in draw_ask_dialog(ask, 1, 1, 60) for _, text in row)
    listed = " ".join(text for _, text in format_ask(open_ask))
    assert "Hidden from you: to" in " ".join(dialog.split())
    assert "Hidden from you: to" in listed


async def test_an_approve_function_gets_the_real_arguments() -> None:
    """It decides in place of a person, so nothing is hidden from it."""
    seen: list[object] = []

    def approve(args: dict[str, object]) -> bool:
        seen.append(args["to"])
        return False

    async def pay(to: str) -> str:
        return f"paid {len(to)}"

    async def read() -> dict[str, str]:
        return {"password": ATTACKER_IBAN}

    turns: list[Line] = [Use("read"), Use("pay", to=ATTACKER_IBAN), "Done."]
    agent = Agent("clerk", model=ScriptedModel(turns), tools=[tool(pay, approve=approve), read])
    async with Midrun("memory://", agents=[agent]) as midrun:
        run = await midrun.start(agent, "Pay.")
        await run.until("completed")
    assert seen == [ATTACKER_IBAN]


async def test_a_tool_cannot_declare_an_argument_that_it_does_not_have() -> None:
    """A typing error must not leave a secret unprotected."""

    async def wire(to: str) -> str:
        return to

    with pytest.raises(
        Misconfigured, match=r"secret must name arguments of the tool \(to\), got 'iban'"
    ):
        tool(wire, secret=["iban"])
    declared, plain = tool(wire, secret=["to"]), tool(wire)
    assert declared.traits.secret == ("to",)
    assert declared.traits.version != plain.traits.version
