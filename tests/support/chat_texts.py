"""Forty chat templates in the manner of public ones, and conversations. All was written for these tests: the forms
are those that models are published with (tools, documents, reasoning, dates, macros, namespaces), the words are not."""

import json
from pathlib import Path

TEMPLATES = json.loads((Path(__file__).parents[1] / "data" / "chat_templates.json").read_text("utf-8"))
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'The weather of a place, "now" & <here>.',
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "a city: Zürich"},
                "days": {"type": "array", "items": {"type": "integer"}},
                "unit": {"type": "string", "enum": ["C", "F"]},
            },
            "required": ["place"],
        },
    },
}
CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "weather", "arguments": {"place": "Bern", "days": [1]}},
}
USER, REPLY = {"role": "user", "content": "  Hello {you}, <b>é</b>  "}, {"role": "assistant", "content": "Hi.\n"}
SYSTEM, AGAIN = {"role": "system", "content": "Be kind."}, {"role": "user", "content": "And\nnow?"}
RESULT = {"role": "tool", "content": "sunny"}
THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\nYes", "reasoning": "hm"}
CONVERSATIONS = {  # messages, tools, further variables
    "a user": ([USER], None, {}),
    "turns": ([SYSTEM, USER, REPLY, AGAIN], None, {"enable_thinking": False}),
    "a reply last": ([USER, REPLY], None, {"add_generation_prompt": False}),
    "tools": ([SYSTEM, AGAIN], [WEATHER], {}),
    "calls": (
        [AGAIN, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT, REPLY, USER],
        [WEATHER, WEATHER],
        {},
    ),
    "thoughts": ([USER, THOUGHT, AGAIN], None, {}),
    "parts": ([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " what "}]}], None, {}),
    "documents": ([USER], None, {"documents": [{"title": "T", "text": "x & y"}], "reasoning_effort": "high"}),
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
