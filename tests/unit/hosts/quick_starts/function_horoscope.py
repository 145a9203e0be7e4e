"""The function calling example of OpenAI's documentation as a plain function of Midrun."""

import json

from openai import AsyncOpenAI

from midrun.hosts import FunctionRun

tools = [
    {
        "type": "function",
        "name": "get_horoscope",
        "description": "Get today's horoscope for an astrological sign.",
        "parameters": {
            "type": "object",
            "properties": {
                "sign": {
                    "type": "string",
                    "description": "An astrological sign like Taurus or Aquarius",
                },
            },
            "required": ["sign"],
        },
    },
]


def get_horoscope(sign):
    return f"{sign}: Next Tuesday you will befriend a baby otter."


async def ask_model(input_list):
    """Stream a reply: pieces of text, then the items of the response."""
    client = AsyncOpenAI(max_retries=0)
    async with client.responses.stream(
        model="gpt-5.2", tools=tools, input=input_list
    ) as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                yield event.delta
        response = await stream.get_final_response()
    yield {
        "text": response.output_text,
        "items": [item.model_dump(mode="json", exclude_none=True) for item in response.output],
    }


async def horoscope(run: FunctionRun, task: str) -> str:
    input_list = [{"role": "user", "content": task}]
    while True:
        reply = await run.model(ask_model, input_list)
        input_list += reply["items"]
        calls = [item for item in reply["items"] if item["type"] == "function_call"]
        if not calls:
            return reply["text"]
        for item in calls:
            sign = json.loads(item["arguments"])["sign"]
            output = await run.step("get_horoscope", get_horoscope, sign)
            input_list.append(
                {"type": "function_call_output", "call_id": item["call_id"], "output": output}
            )
