"""A checkpoint is text that its bearer may have written: three attacks on `POST /v1/resume`.

An operator may bring a checkpoint. Without a signature the journal in it proves nothing: the
operator can add a colleague's approval, drop the approval from a call, or name a function.
"""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
import httpx2
import pytest
from msgspec.structs import replace

from midrun import Agent, Checkpoint, Midrun, tool
from midrun.client.transport import NO_TLS_CONTEXT
from midrun.codec.hash_chain import UNKEYED_CHAIN
from midrun.codec.journal import decode_lines, format_record
from midrun.core.entries import (
    AskAnswered,
    AskOpened,
    CallDone,
    Entry,
    PauseRequested,
    Record,
    RunImported,
    RunPaused,
    RunStarted,
    RunWoken,
)
from midrun.core.evolve import fold
from midrun.core.ids import AskId, RunId, Seq
from midrun.core.stops import Custom
from midrun.core.values import Decision, Reply, Traits
from midrun.errors import CheckpointRefused
from midrun.models import ScriptedModel, Use
from midrun.server import Tokens, app
from tests.unit.server.calling import expect
from tests.unit.server.conftest import PATIENCE, PEOPLE, listening, token_of

FORGED: Final = RunId("run_forged")
PEOPLE_HERE: Final = PEOPLE | {"otto": replace(PEOPLE["olga"], name="otto")}


class Bank:
    """A server with a gated tool, and the transfers that it made."""

    def __init__(self, mid: Midrun, url: str, wired: list[str]) -> None:
        self.mid = mid
        self.url = url
        self.wired = wired

    def client(self, name: str = "olga") -> httpx2.AsyncClient:
        """Return a client with the token of one of the people."""
        headers = {"Authorization": f"Bearer {token_of(name)}"}
        return httpx2.AsyncClient(
            base_url=self.url, headers=headers, timeout=PATIENCE, verify=NO_TLS_CONTEXT
        )

    async def waiting(self) -> Checkpoint:
        """Return the checkpoint of a run of olga's that waits for another operator."""
        run = await self.mid.start("teller", "Pay", actor=PEOPLE["olga"])
        await run.until("waiting")
        async with self.client() as olga:
            text = (await olga.get(f"/v1/runs/{run.id}/checkpoint")).text
        return self.mid.checkpoint_in(text)

    async def bring(self, checkpoint: Checkpoint, **given: object) -> httpx2.Response:
        """Have olga bring a checkpoint."""
        body = {"checkpoint": json.loads(checkpoint.to_json()), **given}
        async with self.client() as olga:
            return await olga.post("/v1/resume", json=body)


@asynccontextmanager
async def bank(
    tmp_path: Path,
    *,
    unsigned: bool = True,
    key: bytes | None = None,
    chain_key: bytes | None = None,
) -> AsyncIterator[Bank]:
    """Serve a teller whose transfers a second operator must approve."""
    wired: list[str] = []

    @tool(approve=True, audience="operator", four_eyes=True)
    async def wire(to: str) -> str:
        """Wire money."""
        wired.append(to)
        return "wired"

    teller = Agent(
        "teller", model=ScriptedModel([Use("wire", to="eve"), "Done."]), tools=[wire]
    )
    address = f"sqlite:///{tmp_path / 'bank.db'}"
    opened = Midrun(address, agents=[teller], key=key, chain_key=chain_key)
    auth = Tokens({token_of(name): actor for name, actor in PEOPLE_HERE.items()})
    with anyio.fail_after(PATIENCE):
        async with opened as mid:
            made = app(mid, auth=auth, unsigned_checkpoints=unsigned)
            async with listening(made) as port:
                yield Bank(mid, f"http://127.0.0.1:{port}", wired)


def forged(
    real: Checkpoint,
    *added: Entry,
    changed: Sequence[tuple[type[Entry], Entry]] = (),
) -> Checkpoint:
    """Return the checkpoint of another run: with entries in place of others, and some more."""
    records = decode_lines(real.run, real.journal)
    for kind, entry in changed:
        seq = next(record.seq for record in records if type(record.entry) is kind)
        records[seq - 1] = replace(records[seq - 1], entry=entry)
    for entry in added:
        seq, at = Seq(len(records) + 1), records[-1].at
        records.append(Record(seq=seq, at=at, entry=entry))
    lines = tuple(format_record(record).decode() for record in records)
    journal = tuple(line.encode() for line in lines)
    return replace(
        real,
        run=FORGED,
        phase=fold(FORGED, records).phase,
        head_seq=Seq(len(lines)),
        head_hash=UNKEYED_CHAIN.compute_head(FORGED, journal).hex(),
        lines=lines,
        signed=False,
        kid="",
        mac="",
    )


def approved_by_otto(real: Checkpoint) -> Checkpoint:
    """Return the checkpoint as if otto had approved the call, and the run had been paused."""
    (ask,) = (r.entry for r in decode_lines(real.run, real.journal) if _opens(r.entry))
    assert isinstance(ask, AskOpened)
    yes = AskAnswered(
        ask=AskId("a1"),
        decision=Decision(choice="approve"),
        args_hash=ask.args_hash,
        by="otto",
        role="operator",
    )
    return forged(real, yes, RunWoken(why="approved"), PauseRequested(by="otto"), RunPaused())


def _opens(entry: Entry) -> bool:
    return isinstance(entry, AskOpened)


# ── only signed checkpoints, unless the app says otherwise ────────────────────────────────


async def test_an_unsigned_checkpoint_is_refused_over_http(tmp_path: Path) -> None:
    """The refusal names the option that allows it, and nothing was taken in."""
    async with bank(tmp_path, unsigned=False) as there:
        reply = await there.bring(approved_by_otto(await there.waiting()))
        told = expect(reply, 409).json()
        assert told["args"][0] == "checkpoint_unsigned"
        assert "unsigned_checkpoints=True" in told["detail"]
        assert "--unsigned-checkpoints" in told["detail"]
        assert FORGED not in {row.run_id for row in (await there.mid.runs()).items}


async def test_with_a_key_leaving_the_signature_off_is_no_way_in(tmp_path: Path) -> None:
    """Not even where unsigned checkpoints are allowed."""
    async with bank(tmp_path, key=b"the key of this deployment") as there:
        reply = await there.bring(approved_by_otto(await there.waiting()))
        assert expect(reply, 409).json()["args"][0] == "checkpoint_invalid"


# ── a forged approval ─────────────────────────────────────────────────────────────────────


async def test_a_forged_approval_makes_no_call(tmp_path: Path) -> None:
    """The call asks again, and the operator who brought the run cannot be the second one."""
    async with bank(tmp_path) as there:
        made = await there.bring(approved_by_otto(await there.waiting()))
        expect(made, 201)
        run = await there.mid.get(FORGED)
        view = await run.until("waiting", "terminal")
        assert (view.phase, there.wired) == ("waiting", [])
        async with there.client() as olga, there.client("otto") as otto:
            said = {"decision": "approve"}
            reply = await olga.post(f"/v1/asks/{FORGED}-a2", json=said)
            expect(reply, 403)
            assert there.wired == []
            expect(await otto.post(f"/v1/asks/{FORGED}-a2", json=said), 202)
        await run.until("completed")
        assert there.wired == ["eve"]
        assert await there.mid.verify(FORGED)


async def test_who_brings_a_run_in_anothers_name_cannot_approve_its_calls(
    tmp_path: Path,
) -> None:
    """Four eyes exclude who began the run, and a forged beginning names a colleague."""
    async with bank(tmp_path) as there:
        real = await there.waiting()
        first = decode_lines(real.run, real.journal)[0].entry
        assert isinstance(first, RunStarted)
        ottos = forged(real, changed=[(RunStarted, replace(first, by="otto"))])
        reply = await there.bring(ottos, answer=True)
        assert expect(reply, 403).json()["reason"] == "not_allowed"
        assert there.wired == []


async def test_a_call_whose_approval_was_left_out_is_not_taken_in(tmp_path: Path) -> None:
    """Nor one whose ask is addressed to others than the tool declares."""
    async with bank(tmp_path) as there:
        real = await there.waiting()
        records = decode_lines(real.run, real.journal)
        ask = next(r.entry for r in records if isinstance(r.entry, AskOpened))
        done = next(r.entry for r in records if isinstance(r.entry, CallDone))
        assert done.reply is not None
        (use,) = done.reply.uses
        free = replace(done, reply=Reply(uses=(replace(use, traits=Traits()),)))
        open_to_all = replace(ask, audience="", four_eyes=False)
        for changed in ([(CallDone, free)], [(AskOpened, open_to_all)]):
            reply = await there.bring(forged(real, changed=changed), answer=True)
            assert expect(reply, 409).json()["args"][0] == "agent_mismatch"
        assert there.wired == []


# ── forged lines under the key of a store ─────────────────────────────────────────────────


async def test_a_keyed_chain_does_not_vouch_for_lines_that_were_brought(
    tmp_path: Path,
) -> None:
    """`verify` says which entries were imported, by whom, and that nothing vouches for them."""
    async with bank(tmp_path, chain_key=b"kept where the database is not") as there:
        brought = approved_by_otto(await there.waiting())
        expect(await there.bring(brought), 201)
        await (await there.mid.get(FORGED)).until("waiting")
        async with there.client() as olga:
            found = (await olga.get(f"/v1/runs/{FORGED}/verify")).json()
        imported = found["imported"]
        assert (imported["upto"], imported["by"]) == (brought.head_seq, "olga")
        assert (imported["head"], imported.get("kid", "")) == (brought.head_hash, "")
        verdict = await there.mid.verify(FORGED)
        assert f"entries 1-{brought.head_seq} were imported" in str(verdict)
        assert "not signed" in str(verdict)


async def test_a_signed_checkpoint_is_shown_with_its_key(tmp_path: Path) -> None:
    """The signature is what the imported entries rest on."""
    key = b"the key of both deployments"
    async with bank(tmp_path, key=key, unsigned=False) as there:
        brought = await there.waiting()
    (tmp_path / "elsewhere").mkdir()
    async with bank(tmp_path / "elsewhere", key=key, unsigned=False) as there:
        expect(await there.bring(brought, instruction="Go on"), 201)
        verdict = await there.mid.verify(brought.run)
        assert verdict.imported is not None
        assert verdict.imported.kid == brought.kid != ""
        assert brought.kid in str(verdict)


async def test_an_import_in_a_checkpoint_must_name_the_lines_before_it(
    tmp_path: Path,
) -> None:
    """A run may be imported twice; the first import is part of what is brought."""
    async with bank(tmp_path) as there:
        real = await there.waiting()
        nested = forged(real, RunImported(checkpoint=real.run, head="00" * 32, by="otto"))
        reply = await there.bring(nested, instruction="Go on")
        assert expect(reply, 409).json()["args"][0] == "checkpoint_invalid"


# ── a function named in a journal ─────────────────────────────────────────────────────────


async def test_a_stop_condition_of_a_journal_imports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither over HTTP nor in process: only what the agent's own stop names is called."""
    marker = tmp_path / "imported"
    (tmp_path / "evil_module.py").write_text(
        f"open({str(marker)!r}, 'w').close()\ndef judge(view):\n    return False\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    async with bank(tmp_path) as there:
        real = await there.waiting()
        first = decode_lines(real.run, real.journal)[0].entry
        assert isinstance(first, RunStarted)
        judged = replace(first, stop=Custom("evil_module:judge"))
        evil = forged(real, changed=[(RunStarted, judged)])
        reply = await there.bring(evil, instruction="Go on")
        assert expect(reply, 409).json()["args"][0] == "agent_mismatch"
        with pytest.raises(CheckpointRefused, match="evil_module:judge"):
            await there.mid.resume(evil, instruction="Go on")
        assert not marker.exists()


async def test_a_stored_stop_condition_that_the_agent_does_not_name_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever way it came into the store: the run fails resumably, and nothing is imported."""
    marker = tmp_path / "imported"
    (tmp_path / "worse_module.py").write_text(
        f"open({str(marker)!r}, 'w').close()\ndef judge(view):\n    return False\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    async with bank(tmp_path) as there:
        started = RunStarted(
            agent="teller", task="Pay", stop=Custom("worse_module:judge"), by="olga"
        )
        await there.mid._service.create_run(RunId("run_stored"), started)
        run = await there.mid.get("run_stored")
        await run.until("failed")
        error = (await run.result()).error  # type: ignore[union-attr]  # it failed
        assert "Add Custom(fn) to Agent(stop=…)" in error
        assert not marker.exists()
