#!/usr/bin/env bash
# The arguments of a tool call become JSON in JSON, or a Python literal, depending on the pair of template and row.
#
# `apply_chat_template` hands `tool_calls[].function.arguments` to the template as the row has them. A template that
# writes `arguments | tojson` quotes OpenAI's form (JSON text) a second time; one that writes `arguments` as it is
# makes a Python literal of an object: 'x', True and None, which no JSON parser reads. Neither raises or warns.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.24.0 tokenizers==0.23.3 jinja2==3.1.6
cd "$work"
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" - <<'PYTHON'
import json
import warnings

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

warnings.simplefilter("error")
made = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
made.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made)
value = {"x": 1, "exact": True, "unit": None}
seen = {}
for form, arguments in {"object": value, "text": json.dumps(value)}.items():
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    for written in ("arguments | tojson", "arguments"):
        template = (
            "{% for m in messages %}{% for c in m.tool_calls or [] %}{% set arguments = c.function.arguments %}"
            "{{ " + written + " }}{% endfor %}{% endfor %}"
        )
        text = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
        seen[form, written] = text
        print(f"transformers {transformers.__version__}, {form}, {written}: {text}")
plain = '{"x": 1, "exact": true, "unit": null}'
assert seen == {
    ("object", "arguments | tojson"): plain,
    ("object", "arguments"): "{'x': 1, 'exact': True, 'unit': None}",
    ("text", "arguments | tojson"): json.dumps(plain),
    ("text", "arguments"): plain,
}, "changed"
PYTHON
