"""A process that sends 24 controls to a run, each of them twice, in a random order.

`python -m tests.unit.client.control_sender URL TOKEN RUN SEED` prints the outcome of each
request as JSON. All processes send the same control under the same request id.
"""

import sys
from random import Random

import anyio
import msgspec

from midrun import ControlRefused, Receipt, connect
from midrun.runs.protocols import AnyRun

REQUESTS = 24


async def send_control(run: AnyRun, number: int) -> Receipt:
    """Send the control with this number."""
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
            outcome: tuple[object, ...]
            try:
                receipt = await send_control(run, number)
                outcome = (number, "receipt", receipt.already, receipt.seq)
            except ControlRefused as refused:
                outcome = (number, "refused", refused.reason, refused.seq)
            sys.stdout.write(msgspec.json.encode(outcome).decode() + "\n")


if __name__ == "__main__":
    anyio.run(_main, sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
