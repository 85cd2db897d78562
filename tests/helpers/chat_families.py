"""Chat templates in the styles of families of models, written for tests, and what each writes around an answer."""

# ruff: noqa: E501 - templates

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from feedmill.jobs.sandbox import Failure, Sandbox

_EACH = "{% for m in messages %}"
_ASK = "{% if add_generation_prompt %}"
_ROLE = "{% set role = 'model' if m.role == 'assistant' else m.role %}"
_ALTERNATE = (
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
)


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Render in this process: starting a child for each of hundreds of jobs would take most of the time.

    Tests of the limits, and of templates that attack, have one.
    """

    def here(sandbox: Sandbox[Any, Any], items: Sequence[Any]) -> Iterator[Any]:
        for item in items:
            try:
                yield sandbox._function(item)
            except Exception as error:
                yield Failure(f"{type(error).__name__}: {error}"[:200])

    monkeypatch.setattr(Sandbox, "map", here)


@dataclass(frozen=True)
class Family:
    """A template.

    Attributes:
        template: its text. With generation blocks, these mark what `header` and `stop` say.
        specials: special tokens. The first one is the EOS.
        header: what it writes before an answer, which is not in the loss.
        stop: text that ends an answer, or names of tokens of the next message, one of which does.
        last: text that ends the last answer, if it is another one.
        has: features: ``system``, ``tools``, ``thinking`` (kept in all answers), ``consecutive`` answers.
    """

    template: str
    specials: tuple[str, ...]
    header: str
    stop: str | tuple[str, ...]
    has: str = "system consecutive"
    last: str | None = None


IM = ("<|im_end|>", "<|im_start|>")
_CHATML = "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
_IM_ASK = _ASK + "{{ '<|im_start|>assistant\n' }}{% endif %}"
_IM_HEADER = "<|im_start|>assistant\n"
_CALLS = (
    "{% for c in m.tool_calls or [] %}{{ '\n<tool_call>\n' + {'name': c.function.name, 'arguments':"
    " c.function.arguments} | tojson + '\n</tool_call>' }}{% endfor %}"
)

FAMILIES: dict[str, Family] = {
    "chatml": Family(_EACH + _CHATML + "{% endfor %}" + _IM_ASK, IM, _IM_HEADER, "<|im_end|>"),
    "chatml marked": Family(
        _EACH + "{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}{% generation %}{{ m.content }}"
        "{{ '<|im_end|>' }}{% endgeneration %}{{ '\n' }}{% else %}" + _CHATML + "{% endif %}{% endfor %}" + _IM_ASK,
        IM,
        _IM_HEADER,
        "<|im_end|>",
    ),
    "qwen 2.5": Family(
        "{% set system = messages[0].content if messages[0].role == 'system' else 'You are helpful.' %}"
        "{{ '<|im_start|>system\n' + system }}{% if tools %}{{ '\n\n# Tools\n' }}{% for t in tools %}{{ t | tojson }}"
        "{% endfor %}{% endif %}{{ '<|im_end|>\n' }}" + _EACH + "{% if m.role == 'assistant' %}"
        "{{ '<|im_start|>assistant' }}{% if m.content %}{{ '\n' + m.content }}{% endif %}" + _CALLS + "{{ '<|im_end|>\n' }}"
        "{% elif m.role == 'tool' %}{% if loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
        "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}{% if loop.last or loop.nextitem.role != 'tool' %}"
        "{{ '<|im_end|>\n' }}{% endif %}{% elif m.role == 'user' %}" + _CHATML + "{% endif %}{% endfor %}" + _IM_ASK,
        IM,
        _IM_HEADER,
        "<|im_end|>",
        "system tools consecutive",
    ),
    "qwen 3": Family(
        "{% set ns = namespace(last=0) %}{% for m in messages if m.role == 'user' %}{% set ns.last = ns.last + 1 %}"
        "{% endfor %}{% set seen = namespace(n=0) %}" + _EACH + "{% if m.role == 'user' %}{% set seen.n = seen.n + 1 %}"
        "{% endif %}{% if m.role == 'assistant' %}{% set answer = m.content.split('</think>')[-1].lstrip('\n') %}"
        "{% set thought = m.content.split('</think>')[0].split('<think>')[-1].strip() if '</think>' in m.content else '' %}"
        "{{ '<|im_start|>assistant\n' }}{% if seen.n == ns.last %}{{ '<think>\n' + thought + '\n</think>\n\n' }}{% endif %}"
        "{{ answer + '<|im_end|>\n' }}{% else %}" + _CHATML + "{% endif %}{% endfor %}" + _IM_ASK,
        IM,
        _IM_HEADER,
        "<|im_end|>",
        "system thinking",
    ),
    "hermes tools": Family(
        "{% if tools %}{{ '<|im_start|>system\n<tools>' }}{% for t in tools %}{{ t | tojson }}{% endfor %}"
        "{{ '</tools><|im_end|>\n' }}{% endif %}" + _EACH + "{{ '<|im_start|>' + m.role + '\n' }}"
        "{% if m.reasoning_content %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n' }}{% endif %}"
        "{{ m.content or '' }}" + _CALLS + "{{ '<|im_end|>\n' }}{% endfor %}" + _IM_ASK,
        IM,
        _IM_HEADER,
        "<|im_end|>",
        "system tools thinking consecutive",
    ),
    "llama 2": Family(
        "{% if messages[0].role == 'system' %}{% set intro = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}"
        "{% set rest = messages[1:] %}{% else %}{% set intro = '' %}{% set rest = messages %}{% endif %}"
        "{% for m in rest %}" + _ALTERNATE + "{% if m.role == 'user' %}"
        "{{ '<s>[INST] ' + (intro if loop.first else '') + m.content.strip() + ' [/INST]' }}"
        "{% else %}{{ ' ' + m.content.strip() + ' </s>' }}{% endif %}{% endfor %}",
        ("</s>", "<s>"),
        "",
        "</s>",
        "system",
    ),
    "llama 3": Family(
        "{{ '<|begin_of_text|>' }}" + _EACH + "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}"
        "{{ m.content | trim + '<|eot_id|>' }}{% endfor %}"
        + _ASK + "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
        ("<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|eot_id|>",
    ),
    "llama 3.1 tools": Family(
        "{{ '<|begin_of_text|>' }}{% if tools %}{{ '<|start_header_id|>system<|end_header_id|>\n\n' }}"
        "{% for t in tools %}{{ t | tojson(indent=4) + '\n' }}{% endfor %}{{ '<|eot_id|>' }}{% endif %}" + _EACH +
        "{{ '<|start_header_id|>' + ('ipython' if m.role == 'tool' else m.role) + '<|end_header_id|>\n\n' }}"
        "{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}"
        "{{ '{\"name\": \"' + f.name + '\", \"parameters\": ' }}{{ f.arguments | tojson }}{{ '}' }}"
        "{% else %}{{ m.content | trim }}{% endif %}{{ '<|eot_id|>' }}{% endfor %}"
        + _ASK + "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
        ("<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|eot_id|>",
        "system tools consecutive",
    ),
    "llama 4": Family(
        "{{ '<|begin_of_text|>' }}" + _EACH + "{{ '<|header_start|>' + m.role + '<|header_end|>\n\n' }}"
        "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}{{ part.text }}{% endfor %}"
        "{% endif %}{{ '<|eot|>' }}{% endfor %}" + _ASK + "{{ '<|header_start|>assistant<|header_end|>\n\n' }}{% endif %}",
        ("<|eot|>", "<|begin_of_text|>", "<|header_start|>", "<|header_end|>"),
        "<|header_start|>assistant<|header_end|>\n\n",
        "<|eot|>",
    ),
    "mistral v1": Family(
        "{{ '<s>' }}" + _EACH + _ALTERNATE + "{% if m.role == 'user' %}{{ ' [INST] ' + m.content + ' [/INST]' }}"
        "{% else %}{{ ' ' + m.content + '</s>' }}{% endif %}{% endfor %}",
        ("</s>", "<s>"),
        "",
        "</s>",
        "",
    ),
    "mistral v3": Family(
        "{{ '<s>' }}{% if tools %}{{ '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}" + _EACH +
        "{% if m.role == 'user' %}{{ '[INST] ' + m.content + '[/INST]' }}{% elif m.tool_calls %}{{ '[TOOL_CALLS] [' }}"
        "{% for c in m.tool_calls %}{{ c.function | tojson }}{{ ', ' if not loop.last }}{% endfor %}{{ ']</s>' }}"
        "{% elif m.role == 'tool' %}{{ '[TOOL_RESULTS] ' + m.content + '[/TOOL_RESULTS]' }}"
        "{% else %}{{ ' ' + m.content + '</s>' }}{% endif %}{% endfor %}",
        ("</s>", "<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        "",
        "</s>",
        "tools consecutive",
    ),
    "mistral v7": Family(
        "{{ '<s>' }}" + _EACH + "{% if m.role == 'system' %}{{ '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}"
        "{% elif m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}{% else %}{{ m.content + '</s>' }}{% endif %}"
        "{% endfor %}",
        ("</s>", "<s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        "",
        "</s>",
    ),
    "gemma 2": Family(
        "{{ '<bos>' }}{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + _EACH +
        _ALTERNATE + _ROLE + "{{ '<start_of_turn>' + role + '\n' + m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
        + _ASK + "{{ '<start_of_turn>model\n' }}{% endif %}",
        ("<end_of_turn>", "<bos>", "<start_of_turn>"),
        "<start_of_turn>model\n",
        "<end_of_turn>",
        "",
    ),
    "gemma 3": Family(
        "{{ '<bos>' }}{% set intro = messages[0].content + '\n\n' if messages[0].role == 'system' else '' %}"
        "{% for m in (messages[1:] if intro else messages) %}" + _ROLE + "{{ '<start_of_turn>' + role + '\n' }}"
        "{{ intro if loop.first }}{% if role == 'model' %}{% generation %}{{ m.content | trim }}{{ '<end_of_turn>' }}"
        "{% endgeneration %}{{ '\n' }}{% else %}{{ m.content | trim }}{{ '<end_of_turn>\n' }}{% endif %}{% endfor %}"
        + _ASK + "{{ '<start_of_turn>model\n' }}{% endif %}",
        ("<end_of_turn>", "<bos>", "<start_of_turn>"),
        "<start_of_turn>model\n",
        "<end_of_turn>",
    ),
    "gemma 4": Family(
        "{{ '<bos>' }}" + _EACH + _ROLE + "{{ '<|turn>' + role + '\n' }}{% for c in m.tool_calls or [] %}"
        "{{ '<|tool_call>call:' + c.function.name + '{' }}{% for k, v in c.function.arguments | items %}"
        "{{ k + ':' + v | tojson }}{% endfor %}{{ '}<tool_call|>' }}{% endfor %}{{ (m.content or '') + '<turn|>\n' }}"
        "{% endfor %}" + _ASK + "{{ '<|turn>model\n' }}{% endif %}",
        ("<turn|>", "<bos>", "<|turn>", "<|tool_call>", "<tool_call|>"),
        "<|turn>model\n",
        "<turn|>",
        "system tools consecutive",
    ),
    "phi 3": Family(
        _EACH + "{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
        + _ASK + "{{ '<|assistant|>\n' }}{% else %}{{ '<|endoftext|>' }}{% endif %}",
        ("<|endoftext|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"),
        "<|assistant|>\n",
        "<|end|>",
        last="<|end|>\n<|endoftext|>",
    ),
    "phi 4": Family(
        _EACH + "{{ '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}{% endfor %}"
        + _ASK + "{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}",
        (*IM, "<|im_sep|>"),
        "<|im_start|>assistant<|im_sep|>",
        "<|im_end|>",
    ),
    "zephyr": Family(
        _EACH + "{{ '<|' + m.role + '|>\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + '</s>' }}"
        "{% endgeneration %}{% else %}{{ m.content + '</s>' }}{% endif %}{{ '\n' }}{% endfor %}"
        + _ASK + "{{ '<|assistant|>\n' }}{% endif %}",
        ("</s>", "<s>"),
        "<|assistant|>\n",
        "</s>",
    ),
    "vicuna": Family(
        "{{ 'A chat.\n\n' if messages[0].role != 'system' }}" + _EACH + "{% if m.role == 'system' %}"
        "{{ m.content + '\n\n' }}{% elif m.role == 'user' %}{{ 'USER: ' + m.content + ' ' }}{% else %}"
        "{{ 'ASSISTANT: ' + m.content + '</s>' }}{% endif %}{% endfor %}" + _ASK + "{{ 'ASSISTANT:' }}{% endif %}",
        ("</s>", "<s>"),
        "ASSISTANT:",
        "</s>",
    ),
    "alpaca": Family(
        _EACH + "{% if m.role == 'system' %}{{ m.content + '\n\n' }}{% elif m.role == 'user' %}"
        "{{ '### Instruction:\n' + m.content + '\n\n' }}{% else %}{{ '### Response:\n' + m.content + '</s>\n\n' }}"
        "{% endif %}{% endfor %}" + _ASK + "{{ '### Response:\n' }}{% endif %}",
        ("</s>",),
        "### Response:\n",
        "</s>",
    ),
    "command r": Family(
        "{{ '<BOS_TOKEN>' }}" + _EACH + "{{ '<|START_OF_TURN_TOKEN|>' + {'user': '<|USER_TOKEN|>', 'assistant':"
        " '<|CHATBOT_TOKEN|>', 'system': '<|SYSTEM_TOKEN|>'}[m.role] + m.content.strip() + '<|END_OF_TURN_TOKEN|>' }}"
        "{% endfor %}" + _ASK + "{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}",
        ("<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|USER_TOKEN|>"),
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        "<|END_OF_TURN_TOKEN|>",
    ),
    "deepseek v2": Family(
        "{{ '<bos>' }}" + _EACH + "{% if m.role == 'user' %}{{ 'User: ' + m.content + '\n\n' }}{% elif m.role == 'assistant' %}"
        "{{ 'Assistant: ' + m.content + '<eos>' }}{% else %}{{ m.content + '\n\n' }}{% endif %}{% endfor %}"
        + _ASK + "{{ 'Assistant:' }}{% endif %}",
        ("<eos>", "<bos>"),
        "Assistant:",
        "<eos>",
    ),
    "deepseek r1": Family(
        "{{ '<bos>' }}" + _EACH + "{% if m.role == 'user' %}{{ '<|User|>' + m.content }}{% elif m.role == 'assistant' %}"
        "{{ '<|Assistant|>' + m.content.split('</think>')[-1] + '<eos>' }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
        + _ASK + "{{ '<|Assistant|><think>\n' }}{% endif %}",
        ("<eos>", "<bos>", "<|User|>", "<|Assistant|>"),
        "<|Assistant|>",
        "<eos>",
    ),
    "glm 4": Family(
        "{{ '[gMASK]<sop>' }}" + _EACH + "{{ '<|' + ('observation' if m.role == 'tool' else m.role) + '|>' }}"
        "{% if m.tool_calls %}{{ m.tool_calls[0].function.name + '\n' + m.tool_calls[0].function.arguments }}"
        "{% else %}{{ '\n' + m.content }}{% endif %}{% endfor %}" + _ASK + "{{ '<|assistant|>' }}{% endif %}",
        ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        "<|assistant|>",
        ("<|user|>", "<|observation|>"),
        "system tools",
    ),
    "internlm 2": Family(
        "{{ '<s>' }}" + _EACH + _CHATML + "{% endfor %}" + _IM_ASK, (*IM, "<s>"), _IM_HEADER, "<|im_end|>"
    ),
    "falcon": Family(  # ignores add_generation_prompt
        _EACH + "{{ 'Falcon: ' if m.role == 'assistant' else m.role | capitalize + ': ' }}{{ m.content }}"
        "{{ '<|endoftext|>' if m.role == 'assistant' }}{{ '\n\n' if not loop.last }}{% endfor %}",
        ("<|endoftext|>",),
        "\n\nFalcon: ",
        "<|endoftext|>",
    ),
    "yi": Family(  # ignores add_generation_prompt
        _EACH + "{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}{% endfor %}", IM, _IM_HEADER, "<|im_end|>"
    ),
    "olmo 2": Family(
        "{{ '<|endoftext|>' }}" + _EACH + "{{ '<|' + m.role + '|>\n' + m.content }}{% if m.role == 'assistant' %}"
        "{{ '<|endoftext|>' }}{% endif %}{{ '\n' if not (m.role == 'assistant' and loop.last) }}{% endfor %}"
        + _ASK + "{{ '<|assistant|>\n' }}{% endif %}",
        ("<|endoftext|>",),
        "<|assistant|>\n",
        "<|endoftext|>",
        "system",
    ),
    "tulu": Family(
        _EACH + "{{ '<|' + m.role + '|>\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% generation %}{{ '</s>' }}{% endgeneration %}{{ '\n' if not loop.last }}{% else %}{{ m.content + '\n' }}{% endif %}"
        "{% endfor %}" + _ASK + "{{ '<|assistant|>\n' }}{% endif %}",
        ("</s>", "<s>"),
        "<|assistant|>\n",
        "</s>",
        "system",
    ),
    "smollm": Family(
        "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nYou are a helper.<|im_end|>\n' }}{% endif %}"
        + _EACH + _CHATML + "{% endfor %}" + _IM_ASK,
        IM,
        _IM_HEADER,
        "<|im_end|>",
    ),
    "granite": Family(
        "{% macro turn(role, text) %}{{ '<|start_of_role|>' + role + '<|end_of_role|>' + text + '<|end_of_text|>\n' }}"
        "{% endmacro %}" + _EACH + "{{ turn(m.role, m.content or m.tool_calls | tojson) }}{% endfor %}"
        + _ASK + "{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}",
        ("<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>"),
        "<|start_of_role|>assistant<|end_of_role|>",
        "<|end_of_text|>",
        "system tools consecutive",
    ),
    "nemotron": Family(
        "{{ '<extra_id_0>System\n' }}{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}{{ '\n' }}"
        "{% for m in messages if m.role != 'system' %}{{ '<extra_id_1>' + m.role | capitalize + '\n' + m.content + '\n' }}"
        "{% endfor %}" + _ASK + "{{ '<extra_id_1>Assistant\n' }}{% endif %}",
        ("<eos>", "<extra_id_0>", "<extra_id_1>"),
        "<extra_id_1>Assistant\n",
        ("<extra_id_1>",),
        "system",
    ),
    "jamba": Family(
        "{{ '<|startoftext|>' }}" + _EACH + "{{ '<|bom|><|' + m.role + '|> ' + m.content + '<|eom|>' }}{% endfor %}"
        + _ASK + "{{ '<|bom|><|assistant|> ' }}{% endif %}",
        ("<|eom|>", "<|startoftext|>", "<|bom|>"),
        "<|bom|><|assistant|> ",
        "<|eom|>",
    ),
    "baichuan": Family(
        _EACH + "{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}{{ '<reserved_106>' + m.content }}"
        "{% else %}{{ '<reserved_107>' + m.content }}{% endif %}{% endfor %}" + _ASK + "{{ '<reserved_107>' }}{% endif %}",
        ("</s>", "<reserved_106>", "<reserved_107>"),
        "<reserved_107>",
        ("<reserved_106>",),
        "system",
    ),
    "starchat": Family(
        "{% if messages[0].role != 'system' %}{{ '<|system|>\n<|end|>\n' }}{% endif %}" + _EACH +
        "{{ '<|' + m.role + '|>' + '\n' + m.content + '<|end|>' + '\n' }}{% endfor %}"
        + _ASK + "{{ '<|assistant|>' }}{% endif %}",
        ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>"),
        "<|assistant|>",
        "<|end|>",
    ),
    "openchat": Family(
        "{{ '<s>' }}" + _EACH + "{{ 'GPT4 Correct ' + m.role.title() + ': ' + m.content + '<|end_of_turn|>' }}{% endfor %}"
        + _ASK + "{{ 'GPT4 Correct Assistant:' }}{% endif %}",
        ("<|end_of_turn|>", "<s>"),
        "GPT4 Correct Assistant:",
        "<|end_of_turn|>",
    ),
    "kimi": Family(
        _EACH + "{{ '<|im_' + m.role + '|>' + m.role + '<|im_middle|>' }}{{ m.content or '' }}{% if m.tool_calls %}"
        "{{ '<|calls|>' }}{% for c in m.tool_calls %}{{ c.function.name ~ ':' ~ loop.index0 ~ c.function.arguments }}"
        "{% endfor %}{{ '<|end_calls|>' }}{% endif %}{{ '<|im_end|>' }}{% endfor %}"
        + _ASK + "{{ '<|im_assistant|>assistant<|im_middle|>' }}{% endif %}",
        ("<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|calls|>", "<|end_calls|>"),
        "<|im_assistant|>assistant<|im_middle|>",
        "<|im_end|>",
        "system tools consecutive",
    ),
    "minimax": Family(
        _EACH + "{{ '<begin>' + ('ai name=helper' if m.role == 'assistant' else m.role + ' name=' + m.role) + '\n' }}"
        "{{ m.content + '<end_of_sentence>\n' }}{% endfor %}" + _ASK + "{{ '<begin>ai name=helper\n' }}{% endif %}",
        ("<end_of_sentence>", "<begin>"),
        "<begin>ai name=helper\n",
        "<end_of_sentence>",
    ),
    "exaone": Family(
        _EACH + "{% if loop.first and m.role != 'system' %}{{ '[|system|][|endofturn|]\n' }}{% endif %}"
        "{{ '[|' + m.role + '|]' + m.content }}{% if m.role == 'user' %}{{ '\n' }}{% else %}{{ '[|endofturn|]\n' }}{% endif %}"
        "{% endfor %}" + _ASK + "{{ '[|assistant|]' }}{% endif %}",
        ("[|endofturn|]", "[|system|]", "[|user|]", "[|assistant|]"),
        "[|assistant|]",
        "[|endofturn|]",
    ),
    "harmony": Family(
        _EACH + "{% if m.role == 'assistant' %}{% if m.thinking and loop.last %}"
        "{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}"
        "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + ('<|return|>' if loop.last else '<|end|>') }}"
        "{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
        + _ASK + "{{ '<|start|>assistant' }}{% endif %}",
        ("<|return|>", "<|end|>", "<|start|>", "<|channel|>", "<|message|>"),
        "<|start|>assistant",
        "<|end|>",
        "system",
        last="<|return|>",
    ),
}  # fmt: skip
