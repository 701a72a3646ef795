// Package tokenizer turns text into the tokens of a model and back, as Hugging Face's library
// tokenizers does, from the file tokenizer.json next to a model:
//
//	t, err := tokenizer.Open(dir)
//	ids := t.Encode("Hello")   // with the tokens that the model wants around a text
//	text := t.Decode(ids)      // without special tokens
//
// A text goes through five steps, which the file describes:
//
//	added tokens     such as <|endoftext|> are cut out of the text        added_tokens
//	normalization    Unicode forms, letter case, spaces                   normalizer
//	splitting        into words, which tokens do not cross                pre_tokenizer
//	the model        words to tokens                                      model
//	the template     tokens around all, such as [CLS] and [SEP]           post_processor
//
// Models are BPE (Sennrich et al., 2016, arXiv:1508.07909) of bytes or of characters with bytes as
// a fallback, WordPiece, and Unigram (Kudo, 2018, arXiv:1804.10959). If a file has a setting that
// this package does not support, Open returns an error that names it. internal/experiments has
// comparisons and the reasons against the existing packages.
//
// # Conversations
//
// Models for chats have a chat template, in chat_template.jinja or tokenizer_config.json, which
// writes a conversation as text. ApplyChatTemplate returns the text, for generation. EncodeChat
// returns the tokens for training, and which of them belong to answers. Package data makes batches
// in which only these count:
//
//	lines, err := data.OpenJSON[tokenizer.Chat]("train.jsonl") // {"messages": [{"role": "user", …}, …]}
//	chats := data.Map(lines, func(c tokenizer.Chat) (l data.Labeled, err error) {
//		l.Tokens, l.Target, err = t.EncodeChat(c)
//		return l, err
//	})
//	rows := data.Truncate(chats, 512) // reports rows that have no answer within 512 tokens
//	loader, err := data.NewLoader(data.Shuffle(rows, seed, epochs), data.TokensAndLabels(data.MultipleOf(64)), config)
//
// Function PackLabeled of package data puts several conversations into a row.
//
// Texts and tokens equal those that transformers' apply_chat_template returns. Tests compare those
// of ChatML and of the templates of Llama 2 and 3, Mistral, Qwen 2 and 3, Gemma, Phi 3 and Zephyr,
// and each construct of the language. A template is an error that names the construct if it needs
// one that is not supported, such as a recursive loop. Some templates print the date of today: set
// their variable, such as date_string, in Chat.Kwargs to have the same rows every day.
//
// A template is a program, often from a downloaded directory. It is an error if a template takes
// more than 1,048,576 steps or a minute, makes a text of more than 16 MiB, or makes more than 256
// MiB in all.
//
// # SentencePiece
//
// A directory without tokenizer.json may have SentencePiece's own tokenizer.model or spiece.model.
// Texts then become the same tokens as in SentencePiece, even where the tokenizer.json that
// transformers makes of such a model differs. Around them are the tokens that transformers adds, by
// tokenizer_config.json, special_tokens_map.json and added_tokens.json. Otherwise the class
// decides, which is tokenizer_class or the class of model_type in config.json:
//
//	LlamaTokenizer        <s> before a text; a space before its beginning only (legacy false)
//	T5Tokenizer           </s> behind it; <extra_id_0> to <extra_id_99>
//	SentencePieceBackend  nothing, and so it is without a class
package tokenizer
