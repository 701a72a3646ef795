"""Writes a directory of sentence-transformers for each small model below, with the numbers that it computes.

    python sentences.py [MODEL...]   # needs torch, transformers and sentence-transformers

MODEL has random float32 weights, in one of the layouts of sentence-transformers: "now" is what version 6 saves, "root" what version 2 saved,
"folder" what versions 0 and 1 saved. MODEL/golden.safetensors has, computed in float64:

    batch.0, batch.1 ...  the texts as the model of package nn takes them: the texts of a row follow each other
    vectors [texts, dim]  of the texts
    losses [2]            of MultipleNegativesRankingLoss, and of MultipleNegativesSymmetricRankingLoss
    grad.NAME             of the first loss, by the parameter's name in model.safetensors
    symmetric.NAME        of the second loss
"""
import json
import os
import shutil
import sys
import tempfile

import models
import torch
import transformers as tf
from models import DISTIL, ENCODER, LENGTH, MODERN, VOCAB
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss, MultipleNegativesSymmetricRankingLoss
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

SCALE = 20.0
MODELS = {  # class, config, layout, pooling, normalize, texts of a row, rows, kinds
    "bert_sentences": (tf.BertModel, tf.BertConfig(**ENCODER), "now", "mean", True, 2, 9, True),
    "roberta_sentences": (tf.RobertaModel, tf.RobertaConfig(**ENCODER, type_vocab_size=1), "folder", "cls", False, 2, 7, True),
    "distilbert_sentences": (tf.DistilBertModel, tf.DistilBertConfig(**DISTIL), "root", "mean", False, 4, 6, False),
    "modernbert_sentences": (tf.ModernBertModel, tf.ModernBertConfig(**MODERN), "now", "cls", True, 3, 7, False),
}
TOKENIZER = os.path.join("..", "hf", "tokenizer", "testdata", "bert")  # which Transformer wants to see


def features(batch, kinds):
    names = ["input_ids", "token_type_ids", "attention_mask"] if kinds else ["input_ids", "attention_mask"]
    return dict(zip(names, batch, strict=True))


def old(path, pooling, normalize, folder):
    """Rewrites what version 6 saves as older versions did, and returns the directory of the weights."""
    kind = "sentence_transformers.models."
    modules = [("0_Transformer" if folder else "", kind + "Transformer"), ("1_Pooling", kind + "Pooling")]
    if normalize:
        modules.append(("2_Normalize", kind + "Normalize"))
    weights = os.path.join(path, modules[0][0])
    if folder:
        os.mkdir(weights)
        for name in "config.json", "model.safetensors":
            os.rename(os.path.join(path, name), os.path.join(weights, name))
    texts = {
        os.path.join(path, "modules.json"): [dict(idx=i, name=str(i), path=p, type=t) for i, (p, t) in enumerate(modules)],
        os.path.join(weights, "sentence_bert_config.json"): {"max_seq_length": LENGTH, "do_lower_case": False},
        os.path.join(path, "1_Pooling", "config.json"): {"word_embedding_dimension": 8, "pooling_mode_cls_token": pooling == "cls",
                                                         "pooling_mode_mean_tokens": pooling == "mean", "pooling_mode_max_tokens": False,
                                                         "pooling_mode_mean_sqrt_len_tokens": False},
    }
    os.remove(os.path.join(path, "sentence_bert_config.json"))
    for name, value in texts.items():
        with open(name, "w") as f:
            json.dump(value, f, indent=2)
    return weights


def write(name):
    model_of, config, layout, pooling, normalize, texts, rows, kinds = MODELS[name]
    torch.manual_seed(1807 + list(MODELS).index(name))
    encoder = model_of(config).eval()
    models.fill(encoder)
    with tempfile.TemporaryDirectory() as plain:
        encoder.save_pretrained(plain)
        for file in "tokenizer.json", "tokenizer_config.json":
            shutil.copy(os.path.join(TOKENIZER, file), plain)
        transformer = Transformer(plain, max_seq_length=LENGTH)
    model = SentenceTransformer(modules=[transformer, Pooling(8, pooling)] + ([Normalize()] if normalize else []), device="cpu")
    shutil.rmtree(name, ignore_errors=True)
    model.save(name, create_model_card=False)
    for file in "tokenizer.json", "tokenizer_config.json":  # of another vocabulary
        os.remove(os.path.join(name, file))
    weights = name if layout == "now" else old(name, pooling, normalize, layout == "folder")
    model = SentenceTransformer(modules=list(model)).double().eval()
    n = texts * rows
    mask = (torch.arange(LENGTH) < LENGTH - torch.arange(n)[:, None] % 5).long()
    pad = config.pad_token_id
    tokens = torch.where(mask == 1, torch.randint(2, VOCAB, (n, LENGTH)), pad)
    batch = [tokens, torch.zeros_like(tokens), mask] if kinds else [tokens, mask]
    golden = {f"batch.{i}": v.clone().contiguous() for i, v in enumerate(batch)}
    golden["vectors"] = model(features(batch, kinds))["sentence_embedding"].detach().clone()
    names = {id(p): name for name, p in transformer.model.named_parameters()}
    losses = []
    for prefix, loss_of in ("grad.", MultipleNegativesRankingLoss), ("symmetric.", MultipleNegativesSymmetricRankingLoss):
        model.zero_grad()
        columns = [features([v[i::texts] for v in batch], kinds) for i in range(texts)]
        loss = loss_of(model, scale=SCALE)(columns, None)
        loss.backward()
        losses.append(loss.item())
        golden |= {prefix + names[id(p)]: p.grad.clone() for p in transformer.model.parameters() if p.grad is not None}
    golden["losses"] = torch.tensor(losses, dtype=torch.float64)
    saved = set(load_file(os.path.join(weights, "model.safetensors")))
    assert all(k.split(".", 1)[1] in saved for k in golden if k.startswith("grad.")), sorted(saved)
    save_file(golden, os.path.join(name, "golden.safetensors"))
    print(name, losses)


for chosen in sys.argv[1:] or MODELS:
    write(chosen)
