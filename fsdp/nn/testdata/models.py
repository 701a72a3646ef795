"""Writes a directory for each small model below, as transformers does, with the numbers that PyTorch computes for it.

    python models.py [MODEL...]   # needs torch and transformers

MODEL/config.json and MODEL/model.safetensors are what save_pretrained writes: random float32 weights, in which no gain is 1 and no
bias 0. MODEL/golden.safetensors has, computed from them in float64:

    batch.0, batch.1 ...  the batch as the model of package nn takes it; a target of -1 does not count
    logits                before any step
    losses [4]            before each of three steps of AdamW on this one batch, and after them
    grad.NAME             of the first loss, by the parameter's name in model.safetensors
    stepped.NAME          the parameter after the three steps

and, in its metadata, the settings of AdamW as JSON. T5's also has bidirectional and causal [301]: the buckets of the relative positions
-150 to 150 for 32 buckets and a largest distance of 128, as transformers computes them in float32.
"""
import copy
import json
import os
import sys
import tempfile

import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import modeling_rope_utils
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.modernbert import modeling_modernbert
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.t5 import modeling_t5

VOCAB, ROWS, LENGTH = 19, 12, 9
ADAMW = dict(lr=0.01, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.1)


class Double:
    """torch for modules of transformers that compute norms and rotations in float32 whatever the weights are."""

    def __getattr__(self, name):
        return torch.float64 if name in ("float32", "float") else getattr(torch, name)


def buckets(bidirectional):
    return modeling_t5.T5Attention._relative_position_bucket(torch.arange(-150, 151), bidirectional)


BUCKETS = {"bidirectional": buckets(True), "causal": buckets(False)}
for module in [modeling_rope_utils, modeling_gemma3, modeling_llama, modeling_mistral, modeling_modernbert, modeling_qwen2, modeling_qwen3, modeling_t5]:
    module.torch = Double()
torch.Tensor.float = torch.Tensor.double
tf.utils.logging.disable_progress_bar()


def decoder():
    """Tokens and targets, which are the next tokens; one does not count."""
    tokens = torch.randint(VOCAB, (ROWS, LENGTH + 1))
    targets = tokens[:, 1:].clone()
    targets[:, 0] = -1
    return [tokens[:, :-1], targets], lambda m, x, y: m(input_ids=x).logits


def packed():
    """Tokens and targets of two documents in each row, and the positions of the tokens in them."""
    (tokens, targets), _ = decoder()
    first = 2 + torch.arange(ROWS)[:, None] % 5  # the length of the first document
    place = torch.arange(LENGTH).expand(ROWS, -1)
    targets[place == first - 1] = -1
    positions = torch.where(place < first, place, place - first)
    return [tokens, targets, positions], lambda m, x, y, p: m(input_ids=x, position_ids=p, use_cache=False).logits


def padding(length):
    """A mask of keys: up to three of each sequence's last tokens are padding."""
    return (torch.arange(length) < length - torch.arange(ROWS)[:, None] % 4).long()


def masked():
    """Tokens, kinds, mask and targets of masked tokens, of which every sequence has two."""
    tokens, kinds = torch.randint(1, VOCAB, (ROWS, LENGTH)), (torch.arange(LENGTH) > 3).long().expand(ROWS, -1)
    targets = torch.full((ROWS, LENGTH), -1)
    targets[:, [1, 4]] = tokens[:, [1, 4]]
    tokens[:, [1, 4]] = 3
    return [tokens, kinds, padding(LENGTH), targets], lambda m, x, k, mask, y: m(x, mask, k).logits


def texts(targets_of, kinds=True, pad=0):
    """Tokens, kinds if there are any, a mask, and targets. Padding has token pad. Where the first token has no head, odd rows have it first."""
    def batch():
        mask = padding(LENGTH)
        if targets_of in (tags, nothing):
            mask[1::2] = mask[1::2].flip(1)
        tokens = torch.where(mask == 1, torch.randint(2, VOCAB, (ROWS, LENGTH)), pad)
        second = [(torch.arange(LENGTH) > 3).long().expand(ROWS, -1) if kinds is True else torch.zeros_like(tokens)] if kinds else []
        targets = targets_of(mask)
        given = [tokens, *second, mask] + ([] if targets is None else [targets])

        def logits(m, x, *more):
            more = dict(zip(["token_type_ids"] * len(second) + ["attention_mask"], more))
            out = m(input_ids=x, **more)
            return out.last_hidden_state if targets is None else out.logits
        return given, logits
    return batch


def classes(mask):
    return torch.randint(3, (ROWS,))


def tags(mask):
    return torch.where(mask == 1, torch.randint(4, mask.shape), -1)


def nothing(mask):
    return None


def sequences():
    """The encoder's tokens and mask, the decoder's tokens, which begin with 0, and targets."""
    targets = torch.randint(1, VOCAB, (ROWS, 6))
    tokens = torch.cat([torch.zeros(ROWS, 1, dtype=torch.long), targets[:, :-1]], 1)
    targets[:, -1] = -1
    batch = [torch.randint(1, VOCAB, (ROWS, LENGTH)), padding(LENGTH), tokens, targets]
    return batch, lambda m, x, mask, d, y: m(input_ids=x, attention_mask=mask, decoder_input_ids=d).logits


def images():
    """Images [B, 3, 6, 9] and classes."""
    return [torch.randn(ROWS, 3, 6, 9), torch.randint(5, (ROWS,))], lambda m, x, y: m(x.double()).logits


def untied(config):
    """T5 with a head of its own. T5Config says that it is tied whatever it is told; the files of v1.1 say that it is not."""
    model = tf.T5ForConditionalGeneration(config)
    model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    config.tie_word_embeddings = False
    return model


SIZES = dict(vocab_size=VOCAB, hidden_size=8, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
LLAMA3 = dict(rope_type="llama3", rope_theta=100.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
ENCODER = dict(vocab_size=VOCAB, hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2,
               max_position_embeddings=11, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
DISTIL = dict(vocab_size=VOCAB, dim=8, hidden_dim=12, n_layers=1, n_heads=2, max_position_embeddings=10, dropout=0.0,
              attention_dropout=0.0, seq_classif_dropout=0.0, qa_dropout=0.0)
MODERN = dict(vocab_size=VOCAB, hidden_size=8, intermediate_size=12, num_hidden_layers=5, num_attention_heads=2, max_position_embeddings=64,
              pad_token_id=0, bos_token_id=None, eos_token_id=None, cls_token_id=None, sep_token_id=None, local_attention=6,
              global_attn_every_n_layers=2, rope_parameters={"full_attention": dict(rope_type="default", rope_theta=1000.0),
                                                             "sliding_attention": dict(rope_type="default", rope_theta=100.0)})
T5 = dict(vocab_size=VOCAB, d_model=8, d_kv=4, d_ff=12, num_layers=2, num_heads=3, relative_attention_num_buckets=8,
          relative_attention_max_distance=7, decoder_start_token_id=0)
MODELS = {
    "llama": (decoder, tf.LlamaForCausalLM, lambda: tf.LlamaConfig(
        **SIZES, head_dim=8, rms_norm_eps=1e-5, max_position_embeddings=512, rope_parameters=LLAMA3)),
    "mistral": (decoder, tf.MistralForCausalLM, lambda: tf.MistralConfig(
        **SIZES, head_dim=4, sliding_window=3, rope_parameters=dict(rope_type="default", rope_theta=1000.0))),
    "qwen2": (decoder, tf.Qwen2ForCausalLM, lambda: tf.Qwen2Config(
        **SIZES | dict(hidden_size=16), tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1e6))),
    "qwen3": (decoder, tf.Qwen3ForCausalLM, lambda: tf.Qwen3Config(
        **SIZES, head_dim=6, tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1e6))),
    "bert": (masked, tf.BertForMaskedLM, lambda: tf.BertConfig(
        vocab_size=VOCAB, hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=3, max_position_embeddings=11,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)),
    "vit": (images, tf.ViTForImageClassification, lambda: tf.ViTConfig(
        hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=3, image_size=[6, 9], patch_size=3, num_labels=5)),
    "t5": (sequences, tf.T5ForConditionalGeneration, lambda: tf.T5Config(**T5, feed_forward_proj="relu", dropout_rate=0.0)),
    "t5v1_1": (sequences, untied, lambda: tf.T5Config(
        **T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False, dropout_rate=0.0)),
    "t5v1_1tied": (sequences, tf.T5ForConditionalGeneration, lambda: tf.T5Config(  # as transformers 5 makes a new v1.1: tied, and not scaled
        **T5, feed_forward_proj="gated-silu", tie_word_embeddings=False, dropout_rate=0.0)),
    "bert_model": (texts(nothing), tf.BertModel, lambda: tf.BertConfig(**ENCODER)),
    "bert_sequences": (texts(classes), tf.BertForSequenceClassification, lambda: tf.BertConfig(
        **ENCODER, num_labels=3, id2label={0: "bad", 1: "fair", 2: "good"}, label2id={"bad": 0, "fair": 1, "good": 2})),
    "bert_tokens": (texts(tags), tf.BertForTokenClassification, lambda: tf.BertConfig(**ENCODER, num_labels=4)),
    "roberta_model": (texts(nothing, "one", 1), tf.RobertaModel, lambda: tf.RobertaConfig(**ENCODER, type_vocab_size=1)),
    "roberta_masked": (texts(tags, "one", 1), tf.RobertaForMaskedLM, lambda: tf.RobertaConfig(**ENCODER, type_vocab_size=1)),
    "roberta_sequences": (texts(lambda _: torch.randint(2, (ROWS, 3)).double(), "one", 1), tf.RobertaForSequenceClassification,
                          lambda: tf.RobertaConfig(**ENCODER, type_vocab_size=1, num_labels=3, problem_type="multi_label_classification")),
    "distilbert_model": (texts(nothing, None), tf.DistilBertModel, lambda: tf.DistilBertConfig(**DISTIL)),
    "distilbert_masked": (texts(tags, None), tf.DistilBertForMaskedLM, lambda: tf.DistilBertConfig(**DISTIL)),
    "distilbert_sequences": (texts(lambda _: torch.randn(ROWS), None), tf.DistilBertForSequenceClassification,
                             lambda: tf.DistilBertConfig(**DISTIL, num_labels=1)),
    "gemma3": (decoder, tf.Gemma3ForCausalLM, lambda: tf.Gemma3TextConfig(  # the root of hidden_size is exact in float32, and a token of padding would have no gradient
        **SIZES | dict(hidden_size=16, num_hidden_layers=3), head_dim=6, sliding_window=3, sliding_window_pattern=2, query_pre_attn_scalar=9, pad_token_id=None,
        rope_parameters={"full_attention": dict(rope_type="linear", rope_theta=1e6, factor=8.0),
                         "sliding_attention": dict(rope_type="default", rope_theta=100.0)})),
    "mistral_packed": (packed, tf.MistralForCausalLM, lambda: tf.MistralConfig(
        **SIZES, head_dim=4, sliding_window=3, rope_parameters=dict(rope_type="default", rope_theta=1000.0))),
    "modernbert_model": (texts(nothing, None), tf.ModernBertModel, lambda: tf.ModernBertConfig(**MODERN)),
    "modernbert_masked": (texts(tags, None), tf.ModernBertForMaskedLM, lambda: tf.ModernBertConfig(**MODERN)),
    "modernbert_sequences": (texts(classes, None), tf.ModernBertForSequenceClassification,
                             lambda: tf.ModernBertConfig(**MODERN, num_labels=3, classifier_pooling="mean")),
    "modernbert_tokens": (texts(tags, None), tf.ModernBertForTokenClassification, lambda: tf.ModernBertConfig(**MODERN, num_labels=4)),
    "xlmroberta_sequences": (texts(classes, "one", 1), tf.XLMRobertaForSequenceClassification,
                             lambda: tf.XLMRobertaConfig(**ENCODER, type_vocab_size=1, num_labels=3)),
    "xlmroberta_masked": (texts(tags, "one", 1), tf.XLMRobertaForMaskedLM, lambda: tf.XLMRobertaConfig(**ENCODER, type_vocab_size=1)),
}


def fill(model):
    """Draws all parameters."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            gain = p.dim() == 1 and name.endswith("weight")
            p.copy_(torch.randn(p.shape) * (0.3 if p.dim() > 1 else 0.2) + (1.0 if gain else 0.0))


def named(prefix, model, values):
    """Values of the parameters, by their names in files, some of which are not those of the modules."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for p, v in zip(model.parameters(), values, strict=True):
            p.copy_(v)
    with tempfile.TemporaryDirectory() as path:
        model.save_pretrained(path)
        return {prefix + name: v for name, v in load_file(os.path.join(path, "model.safetensors")).items()}


def loss(logits, targets):
    if targets.is_floating_point():
        if logits.shape[-1] == 1:
            return functional.mse_loss(logits.squeeze(-1), targets.double())
        return functional.binary_cross_entropy_with_logits(logits, targets)
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=-1)


def save(name, model, golden):
    save_file(golden, os.path.join(name, "golden.safetensors"), metadata={"adamw": json.dumps(ADAMW)})
    print(name, golden.get("losses"), sum(p.numel() for p in model.parameters()), "parameters")


def write(name):
    batch_of, model_of, config_of = MODELS[name]
    torch.manual_seed(2017 + list(MODELS).index(name))
    model = model_of(config_of()).eval()
    fill(model)
    model.save_pretrained(name)
    if os.path.exists(path := os.path.join(name, "generation_config.json")):
        os.remove(path)
    batch, logits_of = batch_of()
    model.double()
    golden = {f"batch.{i}": v.clone().contiguous() for i, v in enumerate(batch)} | (BUCKETS if name == "t5" else {})
    if name.endswith("_model"):  # without a head there is no loss: the last layer
        golden["logits"] = logits_of(model, *batch).detach().clone()
        return save(name, model, golden)
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    losses = []
    for step in range(4):
        optimizer.zero_grad()
        logits = logits_of(model, *batch)
        value = loss(logits, batch[1] if batch_of is packed else batch[-1])
        value.backward()
        losses.append(value.item())
        if step == 0:
            golden["logits"] = logits.detach().clone()
            golden |= named("grad.", model, [p.grad for p in model.parameters()])
        if step < 3:
            optimizer.step()
    golden |= named("stepped.", model, model.parameters())
    golden["losses"] = torch.tensor(losses, dtype=torch.float64)
    save(name, model, golden)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or MODELS:
        write(chosen)
