"""Every control of the core has one spec, and every interface has what the spec declares."""

import inspect
import shlex
from typing import Final, get_args

import pytest

from midrun import ControlRefused
from midrun.cli.command_specs import COMMAND_GROUPS
from midrun.cli.parser import build_parser
from midrun.client.run import RemoteRun
from midrun.core import controls
from midrun.ports.environment import read_wall_clock
from midrun.runs.control_specs import CONTROL_SPECS, ControlSpec, ControlTarget
from midrun.runs.run import Run
from midrun.runs.validation import ControlOptions
from midrun.server.routes import ENDPOINTS
from midrun.testing.controllable_tools import ControllableTools
from midrun.tui.bar import KEY_HELP
from midrun.tui.controller import BarController, build_key_bindings
from tests.unit.cli.command_runner import CommandRunner
from tests.unit.client.conftest import ConnectClient, StartServer

INTERNAL_CONTROLS: Final = {
    controls.Halt: "people halt a scope with `Midrun.halt`; workers send it to each run in it",
    controls.Lift: "people lift a scope with `Midrun.lift`; workers send it to each run in it",
}
"""Controls without a spec, with the reason."""

PART_EXAMPLES: Final = {"": "", "ask": "a1", "frame": "f1", "command": "1"}

each_spec = pytest.mark.parametrize("spec", CONTROL_SPECS, ids=lambda spec: spec.name)


def test_each_control_of_the_core_has_exactly_one_spec() -> None:
    specified = [spec.control for spec in CONTROL_SPECS]
    assert len(specified) == len(set(specified))
    assert {*specified, *INTERNAL_CONTROLS} == set(get_args(controls.Control))
    assert not INTERNAL_CONTROLS.keys() & set(specified)


@each_spec
def test_the_route_of_a_spec_is_an_endpoint(spec: ControlSpec) -> None:
    route = spec.route
    (found,) = [e for e in ENDPOINTS if (e.method, e.path) == (route.method, route.path)]
    assert (found.role, found.if_match) == (route.role, route.if_match)
    assert (f"{{{route.part}}}" in route.path) == bool(route.part)


@each_spec
def test_the_command_of_a_spec_has_help_and_completions(
    spec: ControlSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    midrun, name = CommandRunner(capsys), spec.command_name
    assert COMMAND_GROUPS[spec.command.group][name].summary == spec.command.summary
    help_text = _remove_spaces(midrun(name, "--help").out)
    for argument in spec.command.arguments:
        assert _remove_spaces(argument.help) in help_text
    for shell in ("bash", "zsh", "fish"):
        assert f" {name}" in midrun("completion", shell).out


def _remove_spaces(text: str) -> str:
    """Return a text as it is before and after it is wrapped."""
    return "".join(text.split())


@each_spec
def test_both_handles_have_the_method_of_a_spec(spec: ControlSpec) -> None:
    local, remote = getattr(Run, spec.name), getattr(RemoteRun, spec.name)
    assert inspect.signature(local) == inspect.signature(remote)
    assert inspect.getdoc(local)


async def test_a_command_reaches_the_method_of_its_control(
    serve: StartServer, stage: ControllableTools, connect_client: ConnectClient
) -> None:
    """From the arguments through body, remote handle, route and `Run` to the core.

    The run has ended and the revision is outdated, so the core refuses every control. Its
    refusal names the control that it got.
    """
    server = await serve(stage.agent("Done."))
    midrun = await connect_client(server)
    run = await midrun.start("actor", "Go.")
    await run.until("completed")
    for spec in CONTROL_SPECS:
        for example in spec.command.examples:
            words = shlex.split(example.partition("    ")[0])
            if words[:2] != ["midrun", spec.command_name]:
                continue
            body = spec.read_body(build_parser().parse_args(words[1:]))
            assert isinstance(body, spec.body)
            target = ControlTarget(run, PART_EXAMPLES[spec.route.part])
            with pytest.raises(ControlRefused) as refused:
                await spec.send(target, body, ControlOptions(seen=0, reason=body.reason))
            assert refused.value.control == spec.name, example


async def test_the_key_of_a_spec_is_bound_and_has_help(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent("Done."))
    run = await server.mid.start("actor", "Go.")
    controller = BarController(
        run, await run.view(), actor="ada", clock=read_wall_clock, leave=lambda _: None
    )
    bindings = build_key_bindings(controller, focus=lambda: None).bindings
    live = {binding.keys for binding in bindings if binding.filter()}
    for spec in CONTROL_SPECS:
        if spec.key:
            assert (spec.key,) in live, spec.name
            assert spec.key in dict(KEY_HELP), spec.name
