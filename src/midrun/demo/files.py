"""The files that the agent changes: drafts, a public notice, a lock and an outbox.

Each tool declares how its effect is handled. A draft has an undo. The lock has a release, which
runs however the run ends. A mail cannot be undone, so it needs an approval. The notice has an
undo and an approval, which shows the changed lines; the agent works on until it is decided. A
repeated call changes nothing, so a crash in the middle of one needs no human decision.
"""

import os
from collections.abc import Awaitable, Callable
from email.message import EmailMessage
from email.utils import formatdate
from functools import partial, wraps
from hashlib import sha256
from pathlib import Path
from typing import Final, ParamSpec, TypeAlias, TypeVar

import anyio.to_thread

from midrun.agents.tool import NOT_DONE, Tool, tool
from midrun.agents.tool_context import Call
from midrun.core.ids import MICROS_PER_SECOND
from midrun.core.values import Json
from midrun.demo.texts import TEXTS
from midrun.ports.environment import read_wall_clock

SENDER: Final = "assistant@larkhaven.example"
BRIEFING_NAME: Final = "briefing.md"
"""The artifact that the page shows while the briefing grows."""

NOTICE_NAME: Final = "notice.md"
"""The artifact with the public notice."""

Args: TypeAlias = dict[str, str]
P = ParamSpec("P")
R = TypeVar("R")


def _in_thread(work: Callable[P, R]) -> Callable[P, Awaitable[R]]:
    """Make a coroutine function of disk access: it is short and not cancelled midway."""

    @wraps(work)
    async def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return await anyio.to_thread.run_sync(partial(work, *args, **kwargs))

    return run


class DemoFiles:
    """The files of the demo in one folder.

    Every run has a draft of its own, `drafts/RUN.md`; the lock is one for all of them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock_file = folder / "briefing.lock"

    def make_tools(self) -> list[Tool]:
        """Return the tools that work on these papers."""
        return [
            tool(
                self._lock,
                name="lock_briefing",
                title="Lock the briefing",
                release=self._unlock,
                idempotent=True,
            ),
            tool(
                self._write,
                name="write_section",
                title="Write section “{heading}”",
                undo=self._unwrite,
                idempotent=True,
            ),
            tool(self._read, name="read_draft", title="Read the draft", read_only=True),
            tool(
                self._read_notice,
                name="read_notice",
                title="Read the public notice",
                read_only=True,
            ),
            tool(
                self._correct_notice,
                name="correct_notice",
                title="Correct the public notice",
                approve="queue",
                undo=self._restore_notice,
                idempotent=True,
            ),
            tool(
                self._send,
                name="send_mail",
                title="Mail “{subject}” to {to}",
                approve=True,
                check=self._was_sent,
            ),
        ]

    def draft_path(self, run: str) -> Path:
        """Return where the draft of a run is."""
        return self.folder / "drafts" / f"{run}.md"

    # ── the lock ──────────────────────────────────────────────────────────────────────────

    @_in_thread
    def _lock(self, call: Call) -> str:
        """Lock the briefing, so that nobody else works on it. Released when the run ends."""
        # Linked, and not written in place: the file never exists without its holder's name.
        mine = _write_atomically(
            self._lock_file.with_suffix(f".{_hash_key(call.key)}"), f"{call.run_id}\n{call.key}"
        )
        try:
            os.link(mine, self._lock_file)
        except FileExistsError:
            run, _, _ = self._lock_file.read_text("utf-8").partition("\n")
            if run != call.run_id:
                raise RuntimeError(f"the briefing is locked by {run}") from None
        finally:
            mine.unlink()
        return "the briefing is locked"

    @_in_thread
    def _unlock(self, call: Call, args: Args, result: Json) -> None:
        del args, result
        if _read_text(self._lock_file).endswith(f"\n{call.original}"):
            self._lock_file.unlink()

    # ── the draft ─────────────────────────────────────────────────────────────────────────

    async def _write(self, call: Call, heading: str, text: str) -> dict[str, Json]:  # noqa: D417 - models do not see the call
        """Write a section of the draft; one of the same heading is replaced.

        Args:
            heading: Of the section.
            text: Its text, in Markdown.
        """
        result = await self._write_draft(call, heading, text)
        await call.show(BRIEFING_NAME, "text/markdown", await self._read(call))
        return result

    @_in_thread
    def _write_draft(self, call: Call, heading: str, text: str) -> dict[str, Json]:
        draft, kept = self.draft_path(call.run_id), self._saved_draft_path(call.key)
        # The old draft is saved under the key of the call. A repeated call finds it and starts
        # from it, so it writes the same again.
        if not kept.exists():
            _write_atomically(kept, _read_text(draft))
        heading = " ".join(heading.split())
        sections = _parse_sections(_read_text(kept)) | {heading: text.strip()}
        whole = "\n\n".join(f"## {title}\n\n{body}" for title, body in sections.items())
        _write_atomically(draft, f"{whole}\n")
        return {
            "file": str(draft.relative_to(self.folder)),
            "sections": list[Json](sections),
            "words": len(whole.split()),
        }

    @_in_thread
    def _unwrite(self, call: Call, args: Args, result: Json) -> None:
        """Restore the saved draft; without one, the call has changed nothing."""
        del args, result
        draft, kept = self.draft_path(call.run_id), self._saved_draft_path(call.original)
        if not kept.exists():
            return
        if before := _read_text(kept):
            _write_atomically(draft, before)
        else:
            draft.unlink(missing_ok=True)
        kept.unlink()

    @_in_thread
    def _read(self, call: Call) -> str:
        """Read the draft as it is now."""
        return _read_text(self.draft_path(call.run_id))

    def _saved_draft_path(self, key: str) -> Path:
        return self.folder / "drafts" / ".before" / f"{_hash_key(key)}.md"

    # ── the notice ────────────────────────────────────────────────────────────────────────

    async def _read_notice(self, call: Call) -> str:
        """Read the public notice about the trees of Quay Street."""
        text = await anyio.to_thread.run_sync(self._load_notice, call.run_id)
        await call.show(NOTICE_NAME, "text/markdown", text)
        return text

    async def _correct_notice(self, call: Call, old_text: str, new_text: str) -> str:  # noqa: D417 - models do not see the call
        """Replace lines of the public notice. A person approves that; go on meanwhile.

        Args:
            old_text: The lines to replace, as they are in the notice.
            new_text: The lines in their place.
        """
        notice = await anyio.to_thread.run_sync(self._load_notice, call.run_id)
        if old_text not in notice and new_text not in notice:
            raise ValueError("the notice does not have these lines; read it again")
        changed = notice.replace(old_text, new_text)
        await anyio.to_thread.run_sync(
            _write_atomically, self._notice_path(call.run_id), changed
        )
        await call.show(NOTICE_NAME, "text/markdown", changed)
        return "the notice is corrected"

    @_in_thread
    def _restore_notice(self, call: Call, args: Args, result: Json) -> None:
        """Put the replaced lines back."""
        del result
        changed = self._load_notice(call.run_id)
        before = changed.replace(args["new_text"], args["old_text"])
        _write_atomically(self._notice_path(call.run_id), before)

    def _load_notice(self, run: str) -> str:
        return _read_text(self._notice_path(run)) or TEXTS.notice

    def _notice_path(self, run: str) -> Path:
        return self.folder / "notices" / f"{run}.md"

    # ── the outbox ────────────────────────────────────────────────────────────────────────

    @_in_thread
    def _send(self, call: Call, to: str, subject: str, body: str) -> str:  # noqa: D417 - models do not see the call
        """Send a mail. This cannot be undone, and a person is asked first.

        Args:
            to: The address of the recipient.
            subject: The subject line.
            body: The whole text of the mail, in Markdown.
        """
        mail = EmailMessage()
        mail["From"], mail["To"], mail["Subject"] = SENDER, to, subject
        mail["Date"] = formatdate(read_wall_clock() / MICROS_PER_SECOND)
        mail["Message-ID"] = f"<{_hash_key(call.key)}@larkhaven.example>"
        mail.set_content(body)
        return self._format_receipt(
            _write_atomically(self._mail_path(call.key), mail.as_string())
        )

    @_in_thread
    def _was_sent(self, call: Call, args: Args) -> Json:
        del args
        mail = self._mail_path(call.key)
        return self._format_receipt(mail) if mail.exists() else NOT_DONE

    def _mail_path(self, key: str) -> Path:
        return self.folder / "outbox" / f"{_hash_key(key)}.eml"

    def _format_receipt(self, mail: Path) -> str:
        return f"sent: {mail.relative_to(self.folder)}"


def _read_text(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""


def _write_atomically(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, "utf-8")
    return beside.replace(path)


def _parse_sections(text: str) -> dict[str, str]:
    """Return the sections of a draft by their headings."""
    parts = (part.partition("\n") for part in f"\n{text}".split("\n## ")[1:])
    return {heading.strip(): body.strip() for heading, _, body in parts}


def _hash_key(key: str) -> str:
    """Return a key as the name of a file."""
    return sha256(key.encode()).hexdigest()[:12]
