"""An agent in a process of its own that uses the unmodified `openai` package.

The worker starts this file as a program. The package finds its address and key in the
environment, as always.
"""

import sys

from openai import OpenAI


def main() -> None:
    """Make a streamed chat completion, then a streamed response."""
    client = OpenAI()
    task = sys.stdin.read()
    said = ""
    for chunk in client.chat.completions.create(
        model="gpt-5.2", messages=[{"role": "user", "content": task}], stream=True
    ):
        said += chunk.choices[0].delta.content or ""  # fails at a chunk without choices
    with client.responses.stream(model="gpt-5.2", input=f"Shorten: {said}") as stream:
        for _ in stream:
            pass
        response = stream.get_final_response()
    assert response.usage is not None
    sys.stdout.write(f"{said} {response.output_text} {response.usage.total_tokens}")


if __name__ == "__main__":
    main()
