"""Second process: load the checkpoint, answer its question, and finish the run.

python examples/refund/approve.py refund.json
"""

import sys

import anyio
from clerk import clerk

from midrun import Checkpoint, Completed


async def main(file: str) -> None:
    """Resume the run with the answer and print the output."""
    # If others can write the file, sign it: Midrun(key=…), and from_json(text, key=…).
    checkpoint = Checkpoint.from_json(await anyio.Path(file).read_text())
    result = await clerk.resume(checkpoint, {"approved": True, "amount": 500})
    assert isinstance(result, Completed)
    print(result.output)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "refund.json")
