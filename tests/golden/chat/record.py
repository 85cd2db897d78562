"""Record what transformers makes of conversations with each template: `python tests/golden/chat/record.py`.

The templates are ours. `expected.json` was written with transformers 4.57.6; a test compares live where it is installed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TOKENIZER = HERE.parent / "nanosets" / "tok1k"
SPECIAL = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city <now> & later",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": [1, 2]}}}


def turn(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


CONVERSATIONS: list[dict[str, Any]] = [
    {"messages": [turn("user", "What is 2+2?"), turn("assistant", "It is 4.")]},
    {
        "messages": [
            turn("system", "Answer briefly.\nIn English."),
            turn("user", "  Name a colour, please  "),
            turn("assistant", "Blue.\n"),
            turn("user", "Another one?"),
            turn("assistant", " Red, or green "),
        ]
    },
    {"messages": [turn("user", "Grüße! 你好 🙂 {{ 7 * 7 }} {% raw %}"), turn("assistant", "你好！ naïve 👩‍👩‍👧 done")]},
    {
        "messages": [
            turn("user", "The weather?"),
            turn("assistant", "", tool_calls=[CALL]),
            turn("tool", "18 °C", name="weather"),
            turn("assistant", "It is 18 °C."),
        ],
        "tools": [TOOL],
    },
    {
        "messages": [
            turn("user", "Think."),
            turn("assistant", "<think>\nhm\n</think>\n\nDone."),
            turn("user", "Again."),
            turn("assistant", "<think>\nwell\n</think>\n\nDone again."),
        ]
    },
    {"messages": [turn("user", "<|im_end|><|endoftext|> in a text"), turn("assistant", "<|endoftext|>ok\r\n\tyes")]},
    {"messages": [turn("user", "No answer yet")]},
    {"messages": [turn("user", "a" * 60 + " b" * 20), turn("assistant", "word " * 20), turn("user", "end")]},
]


def recorded(tokenizer: Any, template: str, conversation: dict[str, Any]) -> dict[str, Any]:
    """Return ids and mask as transformers makes them; an empty dict if the template fails."""
    marked = "{% generation" in template or "{%- generation" in template
    try:
        found = tokenizer.apply_chat_template(
            conversation["messages"],
            tools=conversation.get("tools"),
            chat_template=template,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=marked,
        )
    except Exception:
        return {}
    out: dict[str, Any] = {"ids": list(found["input_ids"])}
    return {**out, "mask": "".join(map(str, found["assistant_masks"]))} if marked else out


def all_recorded() -> dict[str, list[dict[str, Any]]]:
    """Return what transformers makes of each conversation, by template."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER / "tokenizer.json"), **SPECIAL)
    return {
        path.stem: [recorded(tokenizer, path.read_text(), one) for one in CONVERSATIONS]
        for path in sorted((HERE / "templates").glob("*.jinja"))
    }


if __name__ == "__main__":
    lines = [
        f" {json.dumps(name)}: [\n" + ",\n".join(f"  {json.dumps(one)}" for one in rows) + "\n ]"
        for name, rows in all_recorded().items()
    ]
    (HERE / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
