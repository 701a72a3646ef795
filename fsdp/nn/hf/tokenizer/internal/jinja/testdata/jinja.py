# Writes jinja.json: templates, and the texts that Jinja makes of them with the settings of transformers, or null for an error.
#
#	pip install jinja2==3.1.6
#	python jinja.py
import json

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

with open("jinja.json") as f:
    templates = [c["Template"] for c in json.load(f)]


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
cases = []
for t in templates:
    try:
        text = env.from_string(t).render(messages=messages, add_generation_prompt=False, tools=None, documents=None)
    except Exception:
        text = None
    cases.append({"Template": t, "Text": text})
with open("jinja.json", "w") as f:
    f.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "\n]\n")
