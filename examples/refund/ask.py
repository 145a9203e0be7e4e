"""First process: run until a person must answer, save the run as JSON, and exit.

python examples/refund/ask.py refund.json
"""

import sys

import anyio
from clerk import clerk

from midrun import is_paused


async def main(file: str) -> None:
    """Start the refund and save the checkpoint."""
    result = await clerk.run("refund order 123")
    assert is_paused(result)
    for ask in result.asks:
        print(ask.question, ask.data)
    # Plain JSON: store it in a database, a queue or an email. No process waits for the answer.
    await anyio.Path(file).write_text(result.checkpoint.to_json())
    print(f"saved to {file}")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "refund.json")
