"""Files of tasks, messages and instructions, and the artifacts of tools."""

import pytest

from midrun.agents.file import File
from midrun.errors import ControlRefused, FileMissing, FileRefused, MidrunError, Misconfigured
from midrun.models import Use
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
