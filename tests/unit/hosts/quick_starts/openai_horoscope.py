"""The function calling example of OpenAI's documentation, in a process of its own.

Only the call of the tool is another: it goes to the MCP server of the run.
"""

import json
import os
import sys
import urllib.request

from openai import OpenAI

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


def call_tool(name, arguments):
    params = {"name": name, "arguments": arguments}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    head = {
        "authorization": f"Bearer {os.environ['MIDRUN_KEY']}",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2025-06-18",
    }
    url = os.environ["MIDRUN_MCP_URL"]
    request = urllib.request.Request(url, json.dumps(body).encode(), head)
    with urllib.request.urlopen(request) as response:
        text = response.read().decode()
    data = text[text.index("{") :]
    return json.loads(data)["result"]["content"][0]["text"]


def main():
    client = OpenAI()
    input_list = [{"role": "user", "content": sys.stdin.read()}]
    while True:
        with client.responses.stream(model="gpt-5.2", tools=tools, input=input_list) as stream:
            for _ in stream:
                pass
            response = stream.get_final_response()
        input_list += [item.to_dict() for item in response.output]
        calls = [item for item in response.output if item.type == "function_call"]
        for item in calls:
            result = call_tool(item.name, json.loads(item.arguments))
            input_list.append(
                {"type": "function_call_output", "call_id": item.call_id, "output": result}
            )
        if not calls:
            sys.stdout.write(response.output_text)
            return


if __name__ == "__main__":
    main()
