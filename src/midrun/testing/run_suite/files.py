"""Files of tasks, messages and instructions, and the artifacts of tools."""

import pytest
from msgspec.structs import replace

from midrun.agents.agent import Agent
from midrun.agents.builtin_tools import pause_here
from midrun.agents.checkpoint import Checkpoint
from midrun.agents.file import File
from midrun.agents.tool import tool
from midrun.agents.tool_context import Call
from midrun.core.entries import CallDone
from midrun.core.transcript import Transcript
from midrun.errors import (
    CheckpointRefused,
    ControlRefused,
    FileMissing,
    FileRefused,
    MidrunError,
    Misconfigured,
)
from midrun.events import ArtifactChanged, AskFinished, AskStarted
from midrun.models import ScriptedModel, Use
from midrun.runs.midrun import Midrun
from midrun.runs.values import FeedEntry
from midrun.testing.controllable_tools import ControllableTools
from midrun.testing.run_suite.fixtures import OLGA, OpenHandle, RunSuiteFixtures

PICTURE = File("Beleg ä.png", "image/png", bytes(range(256)) * 40)
NOTE = File("note.md", "text/markdown", "# Grüße\n".encode())
LARGE = File("large.bin", "application/octet-stream", bytes(11 * 1024 * 1024))


class FileHandleTests(RunSuiteFixtures):
    """A file reaches the run with its text, and can be read back from it."""

    async def test_files_come_with_the_task_a_message_and_an_instruction(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        mid = await opened(
            stage.agent(Use("slow", name="a"), Use("slow", name="b"), "Yes.", "Done.")
        )
        run = await mid.start("actor", "Look at it", files=[PICTURE], actor=OLGA)
        await stage.start("a").wait()
        await run.redirect("Now this", files=[NOTE], actor=OLGA)
        assert (await run.view()).pending[0].files == (NOTE.ref,)
        await run.pause(actor=OLGA)
        stage.gate("a").set()
        await run.until("paused")
        await run.resume("And both", files=[PICTURE, NOTE], actor=OLGA)
        await stage.start("b").wait()
        await run.say("Seen?", files=[File("c.txt", "text/plain", b"c")], actor=OLGA)
        stage.gate("b").set()
        await run.until("completed")
        for file in (PICTURE, NOTE, File("c.txt", "text/plain", b"c")):
            assert await run.file(file.ref.hash) == file
        with pytest.raises(FileMissing):
            await run.file("0" * 64)
        with pytest.raises(FileMissing):
            await run.file("../view")

    async def test_a_checkpoint_has_the_files_of_its_run(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        mid = await opened(stage.agent(Use("slow", name="a"), "Done."))
        run = await mid.start("actor", "go", files=[PICTURE])
        await stage.start("a").wait()
        await run.pause(now=True, actor=OLGA)
        await run.until("paused")
        text = (await run.checkpoint()).to_json()
        checkpoint = Checkpoint.from_json(text, key=self.checkpoint_key)
        assert checkpoint.files == ((PICTURE.ref.hash, PICTURE.data),)
        agents = [stage.agent(Use("slow", name="a"), "Done.")]
        async with Midrun("memory://", key=self.checkpoint_key, agents=agents) as other:
            elsewhere = await other.resume(checkpoint)
            assert await elsewhere.file(PICTURE.ref.hash) == PICTURE
            forged = replace(checkpoint, files=((PICTURE.ref.hash, b"forged"),))
            lacking = replace(checkpoint, files=())
            if self.checkpoint_key is None:
                async with Midrun("memory://", agents=agents) as third:
                    for wrong in (forged, lacking):
                        with pytest.raises(CheckpointRefused, match="file"):
                            await third.resume(wrong)

    async def test_a_file_beyond_a_limit_is_refused_by_name(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """Nothing is lost: the same text without the file is accepted."""
        mid = await opened(stage.agent(Use("slow", name="a"), "Yes.", "Done."))
        with pytest.raises(FileRefused, match=r"“large.bin”.*limit is 10485760 per file"):
            await mid.start("actor", "go", files=[LARGE])
        run = await mid.start("actor", "go", files=[PICTURE])
        await stage.start("a").wait()
        with pytest.raises(ControlRefused, match=r"large.bin") as refused:
            await run.say("Seen?", files=[LARGE], actor=OLGA)
        assert refused.value.reason == "files_refused"
        await run.say("Seen?", actor=OLGA)
        stage.gate("a").set()

    async def test_arguments_that_are_no_files_are_refused(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        mid = await opened(stage.agent("Done."))
        for wrong in ("path.png", [b"bytes"], [PICTURE, "path.png"]):
            with pytest.raises(Misconfigured, match="files"):
                await mid.start("actor", "go", files=wrong)  # type: ignore[arg-type]
        run = await mid.start("actor", "go")
        with pytest.raises(MidrunError, match="instruction"):
            await run.resume(files=[PICTURE])

    async def test_tools_show_artifacts_with_versions_and_return_files(
        self, opened: OpenHandle
    ) -> None:
        """The journal, the view, the report and the events name them."""

        @tool
        async def draw(call: Call) -> object:
            """Draw a chart."""
            await call.show("plan.md", "text/markdown", "# One")
            await call.show("plan.md", "text/markdown", "# Two")
            await call.show("plan.md", "text/markdown", "# Two")  # the same content
            await call.show("rows.csv", "text/csv", b"a,b\n")
            return ["The chart", PICTURE]

        @tool(artifact="summary.json", in_process=True)
        def sum_up(call: Call) -> object:
            """Sum it up."""
            _ = call.show("plan.md", "text/markdown", "# Three")  # has returned: it blocks
            return {"total": 3}

        model = ScriptedModel([Use("draw"), Use("sum_up"), "Done."])
        mid = await opened(Agent("actor", model=model, tools=[draw, sum_up]))
        run = await mid.start("actor", "go")
        view = await run.until("completed")
        shown = await run.artifacts()
        assert [(a.name, a.version) for a in shown] == [
            ("plan.md", 1),
            ("plan.md", 2),
            ("rows.csv", 1),
            ("plan.md", 3),
            ("summary.json", 1),
        ]
        assert view.artifacts == shown
        assert (await run.file(shown[1].file.hash)).data == b"# Two"
        summary = await run.file(shown[-1].file.hash)
        assert summary == File("summary.json", "application/json", b'{\n  "total": 3\n}')
        assert await run.file(PICTURE.ref.hash) == PICTURE
        events = [event async for event in run.events() if isinstance(event, ArtifactChanged)]
        assert [(e.name, e.version, e.file) for e in events] == [
            (a.name, a.version, a.file) for a in shown
        ]
        assert [line.name for line in (await run.report()).artifacts] == [
            "plan.md",
            "rows.csv",
            "summary.json",
        ]
        assert (await mid.verify(run.id)).problems == ()

    async def test_a_question_and_its_answer_have_files(self, opened: OpenHandle) -> None:
        """The person sees those of the question; the model reads those of the answer."""

        @tool
        async def compare() -> None:
            """Ask which picture is right."""
            pause_here("Is this the one?", files=[PICTURE], options=["yes", "no"])

        def reply(transcript: Transcript) -> str:
            (made,) = transcript[-1].uses
            return f"{made.result}, {made.files[0].name}"

        model = ScriptedModel([Use("compare"), reply])
        mid = await opened(Agent("actor", model=model, tools=[compare]))
        run = await mid.start("actor", "go")
        (ask,) = (await run.until("waiting")).asks
        assert (ask.files, ask.takes_files) == ((PICTURE.ref,), True)
        assert await run.file(PICTURE.ref.hash) == PICTURE
        with pytest.raises(ControlRefused, match=r"large.bin"):
            await run.answer("no", files=[LARGE], actor=OLGA)
        with pytest.raises(Misconfigured, match="files"):
            await run.answer("no", files="path.png", actor=OLGA)  # type: ignore[arg-type]
        await run.answer("no, this one", files=[NOTE], actor=OLGA)
        assert (await run.until("completed")).output == "no, this one, note.md"
        assert await run.file(NOTE.ref.hash) == NOTE
        events = [event async for event in run.events()]
        (asked,) = (event for event in events if isinstance(event, AskStarted))
        (answered,) = (event for event in events if isinstance(event, AskFinished))
        assert (asked.files, answered.files) == ((PICTURE.ref,), (NOTE.ref,))
        assert asked.sentence.endswith("“Is this the one?”, with the file “Beleg ä.png”")
        assert answered.sentence.endswith("“no, this one”, with the file “note.md”")
        assert (await mid.verify(run.id)).problems == ()

    async def test_a_question_with_a_file_beyond_a_limit_is_asked_without_it(
        self, opened: OpenHandle
    ) -> None:
        """The tool may have had an effect before it asked."""

        @tool
        async def compare() -> None:
            """Ask which picture is right."""
            pause_here("Is this the one?", files=[LARGE])

        model = ScriptedModel([Use("compare"), "Done."])
        mid = await opened(Agent("actor", model=model, tools=[compare]))
        run = await mid.start("actor", "go")
        (ask,) = (await run.until("waiting")).asks
        assert ask.files == ()
        assert ask.question.startswith("Is this the one?\n\nCannot take the file “large.bin”")
        await run.answer("yes", actor=OLGA)
        await run.until("completed")

    async def test_an_artifact_beyond_a_limit_is_refused_in_the_tool(
        self, opened: OpenHandle
    ) -> None:
        """The tool may continue, and the result of a call that took effect is kept."""

        @tool
        async def draw(call: Call) -> object:
            """Draw a chart."""
            with pytest.raises(FileRefused, match=r"large\.bin"):
                await call.show("large.bin", "application/octet-stream", LARGE.data)
            with pytest.raises(Misconfigured, match="media_type"):
                await call.show("x", "nonsense", "x")
            return ["drawn", LARGE]

        model = ScriptedModel([Use("draw"), "Done."])
        mid = await opened(Agent("actor", model=model, tools=[draw]))
        run = await mid.start("actor", "go")
        await run.until("completed")
        assert await run.artifacts() == ()
        entries = [i.entry async for i in run.feed() if isinstance(i, FeedEntry)]
        done = [e for e in entries if isinstance(e, CallDone) and e.reply is None]
        assert (done[0].result, done[0].files) == ("drawn", ())
        assert "large.bin" in done[0].encoding_error
