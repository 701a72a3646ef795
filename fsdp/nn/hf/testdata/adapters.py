"""Writes adapters of peft, each a directory in peft/ with logits.json in it: what the model computes with the adapter, in float64.

    python adapters.py            # needs torch, transformers and peft; made with 2.15.0, 5.24.0 and 0.21.2
    python adapters.py DIR BASE FILE # loads the adapter DIR instead, and compares logits and greedy tokens with those in FILE
"""
import json
import os
import shutil
import sys

import peft
import safetensors.torch
import torch
import transformers
from transformers import modeling_rope_utils
from transformers.models.llama import modeling_llama

os.chdir(os.path.dirname(os.path.abspath(__file__)))


class Double:
    """torch, with float64 in place of float32: the rotary angles of Llama would be float32."""

    def __getattr__(self, name):
        return torch.float64 if name in ("float32", "float") else getattr(torch, name)


for module in [modeling_rope_utils, modeling_llama]:
    module.torch = Double()
CASES = {
    "llama-qv": ("llama", dict(r=3, lora_alpha=6, target_modules=["q_proj", "v_proj"], use_rslora=True)),
    "llama-all": ("llama", dict(r=2, lora_alpha=5, target_modules="all-linear")),
    "gpt2": ("gpt2", dict(r=2, lora_alpha=4, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)),
}


def opened(base):
    torch.Tensor.float = torch.Tensor.double
    return transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64, attn_implementation="eager").eval()


def logits(model, tokens):
    with torch.no_grad():
        return model(torch.tensor(tokens)).logits


def greedy(model, tokens):
    for _ in range(20):
        with torch.no_grad():
            tokens = tokens + [int(model(torch.tensor([tokens[-10:]])).logits[0, -1].argmax())]
    return tokens[-20:]


def main():
    for name, (base, settings) in CASES.items():
        torch.manual_seed(5)
        model = peft.get_peft_model(opened(base), peft.LoraConfig(task_type="CAUSAL_LM", **settings)).eval()
        for key, p in model.named_parameters():
            if "lora_" in key:
                p.data = (torch.randn_like(p) * 0.3).to(torch.float32).double()
        to = f"peft/{name}"
        shutil.rmtree(to, ignore_errors=True)
        model.save_pretrained(to)
        weights = safetensors.torch.load_file(f"{to}/adapter_model.safetensors")
        safetensors.torch.save_file({key: w.to(torch.float32) for key, w in weights.items()}, f"{to}/adapter_model.safetensors")
        os.remove(f"{to}/README.md")
        config = json.load(open(f"{to}/adapter_config.json"))
        config["base_model_name_or_path"] = base
        json.dump(config, open(f"{to}/adapter_config.json", "w"), indent=1)
        tokens = torch.randint(0, model.config.vocab_size, (2, 9)).tolist()
        with open(f"{to}/logits.json", "w") as f:
            json.dump(dict(tokens=tokens, logits=[float(f"{x:.15g}") for x in logits(model, tokens).flatten().tolist()]), f)


def check(directory, base, golden):
    model = peft.PeftModel.from_pretrained(opened(base), directory).eval()
    golden = json.load(open(golden))
    off = logits(model, golden["tokens"]).flatten() - torch.tensor(golden["logits"], dtype=torch.float64)
    print(directory, "largest difference of a logit:", off.abs().max().item())
    merged = model.merge_and_unload()
    print("20 greedy tokens:", greedy(merged, golden["tokens"][0]))


if len(sys.argv) > 1:
    check(*sys.argv[1:])
else:
    main()
