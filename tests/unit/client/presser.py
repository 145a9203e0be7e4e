"""A process that presses buttons of one run, some of them twice, in an order of its own.

`python -m tests.unit.client.presser URL TOKEN RUN SEED` prints the answer to each request as
JSON. Under one request id every process asks for the same thing.
"""

import sys
from random import Random

import anyio
import msgspec

from midrun import ControlRefused, Receipt, connect
from midrun.runs.protocols import AnyRun

REQUESTS = 24


async def press(run: AnyRun, number: int) -> Receipt:
    """Ask for what this number stands for."""
    request_id = f"request {number}"
    match number % 6:
        case 0:
            return await run.pause(request_id=request_id)
        case 1:
            return await run.resume(request_id=request_id)
        case 2 | 3:
            return await run.redirect(f"Course {number}.", request_id=request_id)
        case 4:
            return await run.withdraw(number, request_id=request_id)
        case _:
            return await run.say(f"Hello {number}?", urgency="later", request_id=request_id)


async def _main(url: str, token: str, run_id: str, seed: int) -> None:
    numbers = list(range(REQUESTS)) * 2
    Random(seed).shuffle(numbers)  # noqa: S311 - an order, not a secret
    async with connect(url, token=token) as mid:
        run = await mid.get(run_id)
        for number in numbers:
            told: tuple[object, ...]
            try:
                receipt = await press(run, number)
                told = (number, "receipt", receipt.already, receipt.seq)
            except ControlRefused as refused:
                told = (number, "refused", refused.reason, refused.seq)
            sys.stdout.write(msgspec.json.encode(told).decode() + "\n")


if __name__ == "__main__":
    anyio.run(_main, sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
