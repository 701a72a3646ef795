"""Writes chat.json: what transformers' apply_chat_template makes of conversations, with chat templates that render as those
of well-known models, and with the tokenizers of this directory, which get all special tokens of these models.

    python chat.py   # needs transformers and jinja2; made with 5.24.0 and 3.1.6

In a template, «…» is the part that a model generates. It becomes {% generation %} blocks in the marked template, and is
left out in the other one, which all published templates are.
"""
import json
import os
import re

from transformers import PreTrainedTokenizerFast

os.chdir(os.path.dirname(os.path.abspath(__file__)))
SPECIAL = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>",
           "<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<s>", "</s>", "[INST]", "[/INST]"]
ALTERNATE = ("{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
             "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}")
TEMPLATES = {
    "llama2": ("llama2", "<s>", "</s>", "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}"
               "{% else %}{% set rest = messages %}{% set system = false %}{% endif %}{% for message in rest %}" + ALTERNATE +
               "{% if loop.index0 == 0 and system != false %}{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}"
               "{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
               "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
               "«{{ ' ' + content.strip() + ' ' + eos_token }}»{% endif %}{% endfor %}"),
    "mistral": ("mistral", "<s>", "</s>", "{{ bos_token }}{% for message in messages %}" + ALTERNATE + "{% if message['role'] == 'user' %}"
                "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
                "«{{ ' ' + message['content'] + eos_token }}»{% endif %}{% endfor %}"),
    "mistral3": ("mistral", "<s>", "</s>", """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{%- set users = rest | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in rest %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST]" + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST]" + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}«
        {{- message["content"] + eos_token }}»
    {%- endif %}
{%- endfor %}
"""),
    "llama3": ("qwen2", "<|begin_of_text|>", "<|eot_id|>", """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{#- a comment #}
{{- "Today Date: " + (date_string if date_string is defined else "26 Jul 2024") + "\\n\\n" + system_message + "<|eot_id|>" }}
{%- for t in tools or [] %}
    {{- t | tojson(indent=4) }}
    {{- "\\n\\n" }}
{%- endfor %}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {%- if message['role'] == 'assistant' %}«
        {{- message['content'] | trim + '<|eot_id|>' }}»
    {%- else %}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""),
    "chatml": ("qwen2", None, "<|im_end|>", "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
               "{% if message['role'] == 'assistant' %}«{{ message['content'] + '<|im_end|>' }}»{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}"
               "{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"),
    "qwen2": ("qwen2", None, "<|im_end|>", """{%- if messages[0]['role'] != 'system' %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- if tools %}
    {{- '<|im_start|>system\\n<tools>' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>' + message.role + '\\n' }}«
        {{- message.content }}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>' }}»
        {{- '\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""),
    "qwen3": ("qwen2", None, "<|im_end|>", """{%- set ns = namespace(searching=true, last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set thoughts = '' %}
        {%- if '</think>' in message.content %}
            {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
            {%- set thoughts = message.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' }}«
        {%- if loop.index0 > ns.last and (loop.last or thoughts) %}
            {{- '<think>\\n' + thoughts.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- content }}
        {%- endif %}
        {{- '<|im_end|>' }}»
        {{- '\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""),
    "gemma": ("qwen2", "<bos>", "<eos>", "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
              "{% for message in messages %}" + ALTERNATE + "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}"
              "{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n' }}{% if role == 'model' %}"
              "«{{ message['content'] | trim + '<end_of_turn>' }}»{% else %}{{ message['content'] | trim + '<end_of_turn>' }}{% endif %}{{ '\\n' }}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"),
    "phi3": ("qwen2", "<s>", "<|endoftext|>", "{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' }}{% if message['role'] == 'assistant' %}"
             "«{{ message['content'] + '<|end|>' }}»{% else %}{{ message['content'] + '<|end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
             "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"),
    "zephyr": ("llama2", "<s>", "</s>", """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n' }}«{{ message['content'] + eos_token }}»{{ '' }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""),
}
user, answer = (lambda text: dict(role="user", content=text)), (lambda text: dict(role="assistant", content=text))
CHATS = {
    "one": dict(messages=[user("Hi there"), answer("Hello.")]),
    "turns": dict(messages=[user(" Wie\ngeht's? "), answer("Gut <b> & \"x\" {y}!"), user("Äpfel 数 🙂"), answer("é\n\n```go\nx := 1\n```"), user("X"), answer("X")]),
    "spaces": dict(messages=[user("a"), answer(" \n b \n"), user("c"), answer("Xd Y")]),
    "system": dict(messages=[dict(role="system", content="Be brief."), user("a"), answer("b"), user("c"), answer("d e")]),
    "think": dict(messages=[user("a"), answer("<think>\nhm\n</think>\n\nb"), user("c"), answer("<think>\nho\n</think>\n\nd")]),
    "tools": dict(messages=[user("weather?"), dict(role="assistant", content="", tool_calls=[dict(type="function", function=dict(
        name="get", arguments=dict(city="Köln", n=2, f=1.5, ok=True)))]), dict(role="tool", content="sunny <1>"), answer("It is sunny.")],
        tools=[dict(type="function", function=dict(name="get", description="Gets <it> & 'more'.", parameters=dict(type="object", city=dict(type="string", n=[1, 2.5, None, True, [], {}]))))]),
    "kwargs": dict(messages=[user("a"), answer("b")], chat_template_kwargs=dict(date_string="1 Jan 2026", enable_thinking=True)),
}


def marked(template):
    """«…» in a line of its own is surrounded by tags that remove the spaces around them."""
    template = re.sub(r"«\n", "\n        {%- generation %}\n", template)
    template = re.sub(r"»\n", "\n        {%- endgeneration %}\n", template)
    return template.replace("«", "{% generation %}").replace("»", "{% endgeneration %}")


def opened(name):
    t = PreTrainedTokenizerFast(tokenizer_file=f"{name}/tokenizer.json")
    t.add_special_tokens({"additional_special_tokens": SPECIAL})
    return t


def main():
    out = []
    for name, (tokenizer, bos, eos, template) in TEMPLATES.items():
        t = opened(tokenizer)
        t.bos_token, t.eos_token = bos, eos
        plain, tags = re.sub("[«»]", "", template), marked(template)
        rows = []
        for chat_name, chat in CHATS.items():
            if chat_name == "tools" and name not in ("qwen2", "llama3"):
                continue
            more = dict(tools=chat.get("tools"), **chat.get("chat_template_kwargs", {}))
            try:
                text = t.apply_chat_template(chat["messages"], chat_template=plain, tokenize=False, **more)
            except Exception as e:  # the template refuses the conversation
                rows.append(dict(chat=chat, refused=str(e)))
                continue
            assert text == t.apply_chat_template(chat["messages"], chat_template=tags, tokenize=False, **more), (name, chat_name)
            prompt = t.apply_chat_template(chat["messages"][:-1], chat_template=plain, tokenize=False, add_generation_prompt=True, **more)
            both = t.apply_chat_template(chat["messages"], chat_template=tags, return_assistant_tokens_mask=True, return_dict=True, **more)
            assert both["input_ids"] == t(text, add_special_tokens=False)["input_ids"]
            rows.append(dict(chat=chat, text=text, prompt=prompt, ids=both["input_ids"], answer="".join(map(str, both["assistant_masks"]))))
        out.append(dict(name=name, tokenizer=tokenizer, bos=bos, eos=eos, template=plain, marked=tags, chats=rows))
    special = {name: json.loads(opened(name).backend_tokenizer.to_str())["added_tokens"] for name in ("llama2", "mistral", "qwen2")}
    with open("chat.json", "w", encoding="utf-8") as f:
        lines = [json.dumps(t, ensure_ascii=False, separators=(",", ":")) for t in out]
        f.write('{"special":%s,\n"templates":[\n%s\n]}\n' % (json.dumps(special, separators=(",", ":")), ",\n".join(lines)))


main()
