// Package tokenizer turns text into the tokens of a model and back, as the library tokenizers of
// Hugging Face does, from the file tokenizer.json that lies beside a model:
//
//	t, err := tokenizer.Open(dir)
//	ids := t.Encode("Hello")   // with the tokens that the model wants around a text
//	text := t.Decode(ids)      // without special tokens
//
// A text goes through five steps, each of which the file describes:
//
//	added tokens     such as <|endoftext|> are cut out of the text        added_tokens
//	normalization    Unicode forms, letter case, spaces                   normalizer
//	splitting        into words, which tokens do not cross                pre_tokenizer
//	the model        words to tokens                                      model
//	the template     tokens around all, such as [CLS] and [SEP]           post_processor
//
// Models are BPE (Sennrich et al., 2016, arXiv:1508.07909) of bytes or of characters with bytes to
// fall back on, WordPiece, and Unigram (Kudo, 2018, arXiv:1804.10959). What a file says and this
// package does not do is an error of Open that names it. internal/EXPERIMENTS.md says how it compares,
// and why none of the packages there are was taken.
//
// # SentencePiece
//
// A directory without tokenizer.json may have SentencePiece's own tokenizer.model or spiece.model.
// Texts then become the tokens that SentencePiece makes of them, also where those of the
// tokenizer.json that transformers converts such a model to differ. Around them stands what
// transformers adds, by tokenizer_config.json, special_tokens_map.json and added_tokens.json. Where
// these do not say, the class does, which is tokenizer_class or that of model_type in config.json:
//
//	LlamaTokenizer        <s> before a text; a space before its beginning only (legacy false)
//	T5Tokenizer           </s> behind it; <extra_id_0> to <extra_id_99>
//	SentencePieceBackend  nothing, and so it is without a class
package tokenizer
