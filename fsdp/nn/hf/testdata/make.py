"""Writes small random models of transformers, each a directory, and logits.json in it: what transformers computes, in float32.
Those of ../../testdata/models.py are tested, too. beams.json has what beam search writes with some of both.

    python make.py            # needs torch and transformers; made with 2.15.0 and 5.23.0
    python make.py DIR [FILE] # loads DIR strictly instead, and compares its logits with those in FILE
"""
import copy
import json
import os
import shutil
import sys

import safetensors.torch
import torch
import transformers

os.chdir(os.path.dirname(os.path.abspath(__file__)))
SMALL = dict(vocab_size=41, num_hidden_layers=2, max_position_embeddings=32, hidden_size=24, bos_token_id=1, eos_token_id=2)
LLAMA = dict(**SMALL, intermediate_size=40, num_attention_heads=4, num_key_value_heads=2)
CONFIGS = {
    "gpt2": transformers.GPT2Config(vocab_size=41, n_positions=16, n_embd=24, n_layer=2, n_head=3, bos_token_id=1, eos_token_id=2),
    "llama": transformers.LlamaConfig(**LLAMA, rope_parameters=dict(
        rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)),
}


def logits(model, tokens):
    with torch.no_grad():
        return model(torch.tensor(tokens)).logits


def make(name, config):
    torch.manual_seed(17)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for p in model.parameters():  # larger than usual, and no gain at one or bias at zero
        p.data += torch.randn_like(p) * 0.2
    tokens = torch.randint(0, config.vocab_size, (2, 11)).tolist()
    shutil.rmtree(name, ignore_errors=True)
    if name == "llama":  # several files, in bfloat16; angles stay as they are
        for p in model.parameters():
            p.data = p.data.bfloat16().float()
        copy.deepcopy(model).bfloat16().save_pretrained(name, max_shard_size="8KB")
    else:
        model.save_pretrained(name)
    with open(f"{name}/logits.json", "w") as f:
        json.dump(dict(tokens=tokens, logits=[float(f"{x:.8g}") for x in logits(model, tokens).flatten().tolist()]), f)


def beams():
    """Texts of beam search in float64, for one prompt each, without what an encoder's text begins with and without the stop token."""
    found = []
    for directory in ["gpt2", "llama", "../../testdata/t5", "../../testdata/t5v1_1", "../../testdata/gemma3"]:
        config = transformers.AutoConfig.from_pretrained(directory)
        model = getattr(transformers, config.architectures[0]).from_pretrained(directory, dtype=torch.float64).eval()
        start = 1 if config.is_encoder_decoder else 5
        for seed in range(8):
            torch.manual_seed(seed)
            prompt = torch.randint(2, config.vocab_size, (1, 5))
            stop = torch.randperm(config.vocab_size)[: 1 + seed % 3].tolist()
            for beams, penalty in [(2, 1.0), (3, 2.0), (2, 0.5)]:
                out = model.generate(prompt, attention_mask=torch.ones_like(prompt), num_beams=beams, length_penalty=penalty, max_new_tokens=8,
                                     eos_token_id=stop, pad_token_id=stop[0], do_sample=False, **({"decoder_start_token_id": 0} if start == 1 else {}))
                text = out[0, start:].tolist()
                ends = [i for i, token in enumerate(text) if token in stop]
                found.append(dict(model=directory, prompt=prompt[0].tolist(), stop=stop, beams=beams, penalty=penalty, text=text[: ends[0] if ends else None]))
    with open("beams.json", "w") as f:
        f.write("[" + ",\n".join(json.dumps(x) for x in found) + "]\n")


def check(directory, golden=None):
    config = transformers.AutoConfig.from_pretrained(directory)
    model, info = getattr(transformers, config.architectures[0]).from_pretrained(directory, output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not info.get(key), (key, info[key])
    print(directory, "loaded strictly as", type(model).__name__, model.dtype)
    if golden is None or golden.endswith(".safetensors"):
        return check_batch(model.eval(), golden)
    golden = json.load(open(golden))
    print(directory, model.dtype, "largest difference of a logit:",
          (logits(model.eval(), golden["tokens"]).float().flatten() - torch.tensor(golden["logits"])).abs().max().item())


def check_batch(model, golden):
    if golden is None:
        return
    g = safetensors.torch.load_file(golden)
    batch = [g[f"batch.{i}"] for i in range(5) if f"batch.{i}" in g][:-1]
    names = {1: ["input_ids"], 2: ["input_ids", "attention_mask"], 3: ["input_ids", "token_type_ids", "attention_mask"]}[len(batch)]
    if model.config.model_type == "vit":
        names, batch = ["pixel_values"], [batch[0].to(model.dtype)]
    if model.config.model_type == "t5":
        names = ["input_ids", "attention_mask", "decoder_input_ids"]
    with torch.no_grad():
        got = model(**dict(zip(names, batch))).logits
    print("largest difference of a logit:", (got.double() - g["logits"]).abs().max().item(), "of", g["logits"].abs().max().item())


if len(sys.argv) > 1:
    check(*sys.argv[1:])
else:
    for name, config in CONFIGS.items():
        make(name, config)
    beams()
