"""Trains small tokenizers with the steps of well-known ones, and writes what tokenizers makes of lines.txt: a directory each.

    python make.py   # needs tokenizers, sentencepiece and protobuf; made with 0.23.3 and 0.2.3
"""
import json
import os
import re
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import decoders as D, models as M, normalizers as N, pre_tokenizers as P, processors as R, trainers as T

os.chdir(os.path.dirname(os.path.abspath(__file__)))
LINES = [json.loads(line) for line in open("lines.txt", encoding="utf-8")]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def template(text, *tokens):
    return R.TemplateProcessing(single=text, pair=text + " $B", special_tokens=list(tokens))


def trained(t, trainer, size, special, **more):
    t.train_from_iterator(LINES, trainer(vocab_size=size, special_tokens=special, show_progress=False, **more))
    return t


def byte_level(special, **more):
    return lambda t: trained(t, T.BpeTrainer, 330, special, initial_alphabet=P.ByteLevel.alphabet(), **more)


def gpt2():
    t = Tokenizer(M.BPE())
    t.pre_tokenizer, t.decoder, t.post_processor = P.ByteLevel(add_prefix_space=False), D.ByteLevel(), R.ByteLevel(trim_offsets=False)
    return byte_level(["<|endoftext|>"])(t), dict(bos_token="<|endoftext|>", eos_token="<|endoftext|>", add_bos_token=False)


def llama3():
    t = Tokenizer(M.BPE(ignore_merges=True))
    t.pre_tokenizer = P.Sequence([P.Split(Regex(LLAMA3), "isolated"), P.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = D.ByteLevel()
    byte_level(["<|begin_of_text|>", "<|end_of_text|>"])(t)
    t.post_processor = R.Sequence([R.ByteLevel(trim_offsets=False), template("<|begin_of_text|> $A", ("<|begin_of_text|>", 0))])
    return t, dict(bos_token="<|begin_of_text|>", eos_token=dict(content="<|end_of_text|>"))


def qwen2():
    t = Tokenizer(M.BPE())
    t.normalizer = N.NFC()
    t.pre_tokenizer = P.Sequence([
        P.Split(Regex(LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")), "isolated"), P.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder, t.post_processor = D.ByteLevel(), R.ByteLevel(trim_offsets=False)
    return byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])(t), dict(bos_token=None, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def roberta():
    t = Tokenizer(M.BPE())
    t.pre_tokenizer, t.decoder = P.ByteLevel(add_prefix_space=True), D.ByteLevel()
    byte_level(["<s>", "<pad>", "</s>", "<unk>"])(t)
    t.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    t.add_tokens([AddedToken("heart", single_word=True), AddedToken("tabs", rstrip=True, normalized=True)])
    t.post_processor = R.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return t, dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def clip():
    t = Tokenizer(M.BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>", continuing_subword_prefix=""))
    t.normalizer = N.Sequence([N.NFC(), N.Replace(Regex(r"\s+"), " "), N.Lowercase()])
    t.pre_tokenizer = P.Sequence([P.Split(Regex(CLIP), "removed", invert=True), P.ByteLevel(add_prefix_space=False)])
    t.decoder = D.Sequence([D.ByteLevel(), D.Replace("</w>", " ")])
    byte_level(["<|startoftext|>", "<|endoftext|>"], end_of_word_suffix="</w>")(t)
    t.post_processor = R.BertProcessing(("<|endoftext|>", 1), ("<|startoftext|>", 0))
    return t, dict(bos_token="<|startoftext|>", eos_token="<|endoftext|>", add_bos_token=True, add_eos_token=True)


def bert(normalizer=N.BertNormalizer(), pre_tokenizer=P.BertPreTokenizer()):
    t = Tokenizer(M.WordPiece(unk_token="[UNK]", max_input_chars_per_word=12))
    t.normalizer, t.pre_tokenizer, t.decoder = normalizer, pre_tokenizer, D.WordPiece()
    trained(t, T.WordPieceTrainer, 500, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    t.post_processor = template("[CLS] $A [SEP]", ("[CLS]", 2), ("[SEP]", 3))
    return t, dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]")


def words():
    return bert(N.Sequence([N.NFKD(), N.StripAccents(), N.Strip(), N.Replace("``", '"')]),
                P.Sequence([P.Whitespace(), P.Digits(individual_digits=True), P.Punctuation("merged_with_previous")]))


def piece_model(kind, size, **more):
    with tempfile.TemporaryDirectory() as d:
        with open(f"{d}/text", "w", encoding="utf-8") as f:
            f.writelines(line.replace("\n", " ").replace("\0", "") + "\n" for line in LINES[:8] + LINES[-9:])
        if "rules" in more:
            with open(f"{d}/rules.tsv", "w") as f:
                f.write(more.pop("rules"))
            more["normalization_rule_tsv"] = f"{d}/rules.tsv"
        sentencepiece.SentencePieceTrainer.train(
            input=f"{d}/text", model_prefix=f"{d}/m", model_type=kind, vocab_size=size, minloglevel=2, num_threads=1, **more)
        m = sentencepiece_model_pb2.ModelProto()
        m.ParseFromString(open(f"{d}/m.model", "rb").read())
        m.trainer_spec.ClearField("input")
        m.trainer_spec.ClearField("model_prefix")
        m.normalizer_spec.ClearField("normalization_rule_tsv")
    return m


def t5_pieces():
    rules = "".join("%X\t%X\n" % (c, c - 0xFEE0) for c in range(0xFF01, 0xFF5F))
    rules += "A\t20\n9\t20\n3000\t20\nA0\t20\nFB01\t66 69\nBD\t31 2044 32\n65 301\tE9\n6E 303\tF1\n200B\t20\n7\n2028\t20\nFEFF\n"
    return piece_model("unigram", 250, rules=rules, unk_id=2, bos_id=-1, eos_id=1, pad_id=0, character_coverage=0.98)


def t5():
    m = t5_pieces()
    t = Tokenizer(M.Unigram([(p.piece, p.score) for p in m.pieces], unk_id=2, byte_fallback=False))
    t.normalizer = N.Precompiled(m.normalizer_spec.precompiled_charsmap)
    t.pre_tokenizer = P.Sequence([P.WhitespaceSplit(), P.Metaspace(prepend_scheme="always")])
    t.decoder = D.Metaspace(prepend_scheme="always")
    t.add_special_tokens(["<pad>", "</s>", "<unk>"])
    t.post_processor = template("$A </s>", ("</s>", 1))
    return t, dict(eos_token="</s>", pad_token="<pad>", unk_token="<unk>")


def xlmr():
    t, _ = t5()
    vocab = json.loads(t.to_str())["model"]["vocab"]
    t.model = M.Unigram([("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)] + [tuple(v) for v in vocab[3:]] + [("<mask>", 0.0)],
                        unk_id=3, byte_fallback=False)
    t = Tokenizer.from_str(json.dumps(json.loads(t.to_str()) | dict(added_tokens=[])))
    t.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True)])
    t.post_processor = template("<s> $A </s>", ("<s>", 0), ("</s>", 2))
    return t, dict(bos_token="<s>", eos_token="</s>", cls_token="<s>", sep_token="</s>", pad_token="<pad>", unk_token="<unk>")


def llama2_pieces():
    return piece_model("bpe", 560, unk_id=0, bos_id=1, eos_id=2, pad_id=-1, byte_fallback=True, normalization_rule_name="identity",
                       remove_extra_whitespaces=False, split_digits=True, character_coverage=0.98)


def llama2():
    m = llama2_pieces()
    vocab = {p.piece: i for i, p in enumerate(m.pieces)}
    merges = []  # as transformers makes them
    for piece, i in vocab.items():
        halves = [(piece[:k], piece[k:]) for k in range(1, len(piece)) if piece[:k] in vocab and piece[k:] in vocab]
        merges += [(m.pieces[i].score, pair) for pair in sorted(halves, key=lambda p: (vocab[p[0]], vocab[p[1]]))]
    merges = [pair for _, pair in sorted(merges, key=lambda x: x[0], reverse=True)]
    t = Tokenizer(M.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")])
    t.decoder = D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)])
    t.add_special_tokens(["<unk>", "<s>", "</s>"])
    t.post_processor = template("<s> $A", ("<s>", 1))
    return t, dict(bos_token="<s>", eos_token="</s>", add_bos_token=True, add_eos_token=False)


def mistral():
    t, config = llama2()
    t.normalizer, t.pre_tokenizer = None, P.Metaspace(prepend_scheme="first", split=False)
    return t, config


def pieces(name, model, config, beside={}, special={}, first=True):
    """A directory of SentencePiece's own file, and what SentencePiece makes of the lines. Tokens that transformers cuts out of
    them are special; first tells whether only the first part then has a space put before it."""
    os.makedirs(name, exist_ok=True)
    with open(f"{name}/{'spiece' if name == 'piecest5' else 'tokenizer'}.model", "wb") as f:
        f.write(model.SerializeToString())
    for file, content in dict(beside, **({"tokenizer_config.json": config} if config else {})).items():
        with open(f"{name}/{file}", "w") as f:
            json.dump(content, f)
    sp = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    model.normalizer_spec.add_dummy_prefix &= not first
    later = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    text = {i: t for t, i in special.items()} | {i: sp.id_to_piece(i) for i in range(len(sp)) if sp.is_control(i) or sp.is_unknown(i)}
    a = sp.piece_to_id("a")

    def encode(line):
        parts = re.split("(" + "|".join(map(re.escape, special)) + ")", line) if special else [line]
        return [i for k, part in enumerate(parts)
                for i in ([special[part]] if k % 2 else (later if k else sp).encode(part))]

    def decode(ids):
        out, part = "", []
        for i in ids + [None]:
            if i is None or i in text:
                out += sp.decode([a] + part)[1:] if out else sp.decode(part)
                out, part = out + text.get(i, ""), []
            else:
                part.append(i)
        return out

    before = [special["<s>"]] if "<s>" in special else []
    after = [special["</s>"]] if "</s>" in special and not before else []
    hidden = text.keys() - beside.get("added_tokens.json", {}).values()
    rows = []
    for line in LINES:
        plain = encode(line)
        ids = before + plain + after
        rows.append(dict(ids=ids, plain=plain, text=decode([i for i in ids if i not in hidden]), all=decode(ids)))
    write_golden(name, rows)


def write_golden(name, rows):
    with open(f"{name}/golden.json", "w", encoding="utf-8") as f:
        f.write("[" + ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows) + "]\n")


for make in (gpt2, llama3, qwen2, roberta, clip, bert, words, t5, xlmr, llama2, mistral):
    t, config = make()
    name = make.__name__
    os.makedirs(name, exist_ok=True)
    t.save(f"{name}/tokenizer.json", pretty=False)
    with open(f"{name}/tokenizer_config.json", "w") as f:
        json.dump(config, f)
    rows = [dict(ids=t.encode(x).ids, plain=t.encode(x, add_special_tokens=False).ids) for x in LINES]
    write_golden(name, [row | dict(text=t.decode(row["ids"]), all=t.decode(row["ids"], skip_special_tokens=False)) for row in rows])

m = t5_pieces()
pieces("piecest5", m, dict(tokenizer_class="T5Tokenizer", extra_ids=3, model_max_length=512), first=False,
       special={"<pad>": 0, "</s>": 1, "<unk>": 2} | {f"<extra_id_{i}>": len(m.pieces) + 2 - i for i in range(3)})
pieces("piecesllama", llama2_pieces(), dict(legacy=False, add_bos_token=True, pad_token=None), special={"<unk>": 0, "<s>": 1, "</s>": 2, "heart": 560},
       beside={"config.json": dict(model_type="llama"), "added_tokens.json": {"heart": 560}, "special_tokens_map.json": dict(bos_token=dict(content="<s>"))})
pieces("pieces", piece_model("unigram", 460, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
                             user_defined_symbols=["free", "  ", "日"], character_coverage=0.98), None)
