"""Other front ends in Chromium, with their unmodified packages, on a page of another origin."""

from base64 import b64encode
from pathlib import Path

from playwright.async_api import expect

from midrun import Agent, Midrun, ask_human
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel
from tests.browser.front_end_page import FRONT_ENDS, bundle_script, serve_front_end
from tests.browser.harness import Harness
from tests.browser.stage import Hold, Stage, Use

EXAMPLE = Path(__file__).parents[2] / "examples" / "ai_sdk" / "chat.jsx"


async def test_use_chat_pauses_reloads_resumes_and_approves(
    harness: Harness, stage: Stage, tmp_path: Path
) -> None:
    agent = stage.play(
        ["The first half", Hold("half"), " and the second."],
        Use("mail", name="m"),
        "Sent.",
    )
    mid = Midrun("memory://", agents=[agent])
    script = bundle_script(EXAMPLE, tmp_path)
    async with serve_front_end(mid, script, api="{url}/ai/actor", chat="t") as address:
        page = await (await harness.profile()).new_page()
        await page.goto(address)
        await page.get_by_label("Message").fill("Tell me")
        await page.get_by_role("button", name="Send").click()
        await expect(page.get_by_label("assistant")).to_have_text("The first half")
        await page.get_by_role("button", name="Stop").click()
        await expect(page.locator("output")).to_have_text("ready")
        await page.reload()
        await expect(page.get_by_label("assistant")).to_contain_text("The first half")
        await page.get_by_label("Message").fill("Go on")
        await page.get_by_role("button", name="Send").click()
        await page.get_by_role("button", name="Approve").click()
        await expect(page.get_by_label("assistant").last).to_contain_text("Sent.")
        await expect(page.get_by_role("alert")).to_have_count(0)
    assert stage.completed == ["m"]


async def test_assistant_ui_streams_approves_and_sends_the_next_message(
    harness: Harness, stage: Stage, tmp_path: Path
) -> None:
    agent = stage.play(
        ["The first half", Hold("half"), " and the second.", Use("mail", name="m")],
        "Sent.",
        "You are welcome.",
    )
    mid = Midrun("memory://", agents=[agent])
    script = bundle_script(FRONT_ENDS / "assistant_ui.jsx", tmp_path)
    async with serve_front_end(mid, script, url="{url}/ai/actor") as address:
        page = await (await harness.profile()).new_page()
        await page.goto(address)
        await page.get_by_label("Message").fill("Tell me")
        await page.get_by_role("button", name="Send").click()
        await expect(page.get_by_label("assistant")).to_contain_text("The first half")
        stage.gate("half").set()
        await page.get_by_role("button", name="Approve").click()
        await expect(page.get_by_label("assistant")).to_contain_text("Sent.")
        await page.get_by_label("Message").fill("Thank you")
        await page.get_by_role("button", name="Send").click()
        await expect(page.get_by_label("assistant").last).to_contain_text("You are welcome.")
        await expect(page.get_by_label("user")).to_have_count(2)
        assert len({run.thread for run in (await mid.runs()).items}) == 1
    assert stage.completed == ["m"]


async def test_ag_ui_and_copilotkit_work_from_another_origin(
    harness: Harness, tmp_path: Path
) -> None:
    """The page sends an image, state and context, and resolves the interrupt of a question."""
    seen: list[str] = []

    def look(messages: Transcript) -> Use | str:
        if messages[-1].text == "Hi":
            return "Hello."
        seen.extend([messages[-1].text, *(file.media_type for file in messages[-1].files)])
        return Use("ask_human", question="Which one?")

    model = ScriptedModel([look, "The red one."])
    mid = Midrun("memory://", agents=[Agent("actor", model=model, tools=[ask_human])])
    script = bundle_script(FRONT_ENDS / "ag_ui.js", tmp_path)
    async with serve_front_end(mid, script, url="{url}") as address:
        page = await (await harness.profile()).new_page()
        await page.goto(address)
        await page.wait_for_function("!!window.runCopilotKit")
        source = {"type": "data", "mimeType": "image/png", "value": b64encode(b"PNG").decode()}
        parts = [{"type": "text", "text": "Look."}, {"type": "image", "source": source}]
        await page.evaluate("agent.setState({cart: [1]})")
        context = [{"description": "The open page", "value": "prices"}]
        waiting = await page.evaluate("runSegment", {"say": parts, "context": context})
        assert waiting["outcome"] == "interrupt"
        assert waiting["messages"][0]["content"] == parts
        await page.reload()
        await page.wait_for_function("!!window.runCopilotKit")
        await page.evaluate("agent.setState({cart: [1]})")
        again = await page.evaluate("runSegment", {})
        assert again["pending"] == waiting["pending"]
        (interrupt,) = again["pending"]
        answer = {"interruptId": interrupt, "status": "resolved", "payload": {"answer": "red"}}
        done = await page.evaluate("runSegment", {"resume": [answer]})
        assert done["outcome"] == "success"
        assert done["messages"][-1]["content"] == "The red one."
        state = done["state"]
        assert (state["cart"], state["midrun"]["run"]["phase"]) == ([1], "completed")
        messages = await page.evaluate("runCopilotKit", "Hi")
        assert messages[-1]["content"] == "Hello."
    assert seen[1:] == ["image/png"]
    assert "The open page: prices" in seen[0]


async def test_the_react_chat_of_copilotkit_pauses_reloads_resumes_and_approves(
    harness: Harness, stage: Stage, tmp_path: Path
) -> None:
    """Its stop button pauses, and its hook for interrupts shows the approval."""
    agent = stage.play(
        ["The first half", Hold("half"), " and the second."],
        Use("mail", name="m"),
        "Sent.",
    )
    mid = Midrun("memory://", agents=[agent])
    script = bundle_script(FRONT_ENDS / "copilotkit.jsx", tmp_path)
    async with serve_front_end(mid, script, url="{url}/copilotkit") as address:
        page = await (await harness.profile()).new_page()
        await page.goto(address)
        chat, message = page.locator(".copilotKitMessages"), page.get_by_role("textbox")
        await message.fill("Tell me")
        await page.get_by_role("button", name="Send").click()
        await expect(chat).to_contain_text("The first half")
        (view,) = (await mid.runs()).items
        run = await mid.get(view.run_id)
        await page.get_by_role("button", name="Stop").click()
        await run.until("paused")
        await page.reload()
        await expect(chat).to_contain_text("The first half")
        await message.fill("Go on")
        await page.get_by_role("button", name="Send").click()
        interrupt = page.get_by_label("interrupt")
        await expect(interrupt).to_contain_text("Mail")
        await interrupt.get_by_role("button", name="Approve").click()
        await expect(chat).to_contain_text("Sent.")
        assert [each.run_id for each in (await mid.runs()).items] == [run.id]
    assert stage.completed == ["m"]
