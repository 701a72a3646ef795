package tokenizer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// settings are the keys of tokenizer_config.json.
type settings map[string]json.RawMessage

// read returns the value of a key, or otherwise if it is missing or null.
func read[T any](c settings, key string, otherwise T) (T, error) {
	if absent(c[key]) {
		return otherwise, nil
	}
	var v T
	if err := json.Unmarshal(c[key], &v); err != nil {
		return v, fmt.Errorf("%s: %w", key, err)
	}
	return v, nil
}

// tokenOf reads a token, which is a text or an object.
func tokenOf(text json.RawMessage) (a added, err error) {
	if json.Unmarshal(text, &a.Content) != nil {
		err = json.Unmarshal(text, &a)
	}
	return a, err
}

// name sets the tokens that have a meaning.
func (t *Tokenizer) name(c settings) error {
	for key, to := range map[string]*int{"bos_token": &t.BOS, "eos_token": &t.EOS, "pad_token": &t.Pad, "unk_token": &t.Unknown} {
		if absent(c[key]) {
			continue
		}
		token, err := tokenOf(c[key])
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		id, ok := t.ids[token.Content]
		if !ok && token.Content != "" {
			return fmt.Errorf("%s %q is not a token", key, token.Content)
		}
		if ok {
			*to = id
		}
	}
	return nil
}

// A class has the additions of transformers to a SentencePiece model if no file says otherwise.
type class struct {
	bos, eos bool              // put around a text
	legacy   bool              // a space precedes text after an added token
	extra    int               // tokens <extra_id_0> and so on
	names    map[string]string // of tokens
}

// classes has the classes by tokenizer_class, and "" for none.
var classes = map[string]class{
	"":                     {legacy: true},
	"SentencePieceBackend": {legacy: true},
	"LlamaTokenizer":       {bos: true, names: map[string]string{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}},
	"T5Tokenizer": {eos: true, legacy: true, extra: 100,
		names: map[string]string{"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}},
}

// tokenKeys are the keys for one special token.
var tokenKeys = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// listKeys are the keys for several special tokens.
var listKeys = []string{"additional_special_tokens", "extra_special_tokens"}

// passedOver are keys that do not change the results of this package.
var passedOver = []string{
	"model_max_length", "padding_side", "truncation_side", "clean_up_tokenization_spaces", "chat_template", "use_default_system_prompt",
	"special_tokens_map_file", "tokenizer_file", "vocab_file", "name_or_path", "processor_class", "auto_map", "spaces_between_special_tokens",
	"use_fast", "backend", "is_local", "local_files_only", "from_slow", "model_input_names", "max_length", "pad_to_multiple_of",
	"pad_token_type_id", "stride", "truncation_strategy", "return_token_type_ids", "trust_remote_code",
}

// openPieces reads a SentencePiece model in a directory, and the files next to it. It returns
// missing if there is none.
func openPieces(dir string, missing error) (*Tokenizer, settings, error) {
	for _, name := range []string{"tokenizer.model", "spiece.model"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		file, err := parsePieces(b)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		t, err := file.tokenizer()
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		c, err := t.beside(dir, file)
		return t, c, err
	}
	return nil, nil, fmt.Errorf("%w, and there is no tokenizer.model or spiece.model; save_pretrained of a fast tokenizer writes it", missing)
}

// readJSON reads a value, if the file is there.
func readJSON[T any](dir, name string) (v T, err error) {
	text, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return v, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &v)
	}
	if err != nil {
		return v, fmt.Errorf("%s: %w", name, err)
	}
	return v, nil
}

// beside applies the files next to a SentencePiece model, as transformers does.
func (t *Tokenizer) beside(dir string, file *pieceFile) (settings, error) {
	config, err1 := readJSON[settings](dir, "tokenizer_config.json")
	special, err2 := readJSON[settings](dir, "special_tokens_map.json")
	numbers, err3 := readJSON[map[string]int](dir, "added_tokens.json")
	model, err4 := readJSON[settings](dir, "config.json")
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	k, err := classOf(config, model)
	if err != nil {
		return nil, err
	}
	c := make(settings)
	for key, name := range k.names {
		if _, ok := t.ids[name]; ok {
			c[key] = fmt.Appendf(nil, "%q", name)
		}
	}
	maps.Copy(c, config)
	for key, value := range special {
		if !slices.Contains(tokenKeys, key) && !slices.Contains(listKeys, key) {
			return nil, fmt.Errorf("special_tokens_map.json: unknown %s %.80s", key, value)
		}
		if absent(config[key]) {
			c[key] = value
		}
	}
	list, err := t.addedTokens(c, k, numbers, file)
	if err == nil {
		err = t.add(nil, list)
	}
	if err == nil {
		err = t.set(c, k, &file.normal)
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	return c, nil
}

// classOf returns the class that the files name.
func classOf(config, model settings) (k class, err error) {
	file := "tokenizer_config.json"
	name, err := read(config, "tokenizer_class", "")
	if err == nil && name == "" {
		file = "config.json"
		name, err = read(model, "tokenizer_class", "")
	}
	if err != nil {
		return k, fmt.Errorf("%s: %w", file, err)
	}
	kind, _ := read(model, "model_type", "")
	name = cmp.Or(name, map[string]string{"t5": "T5Tokenizer", "llama": "LlamaTokenizer", "mistral": "LlamaTokenizer"}[kind])
	k, ok := classes[strings.TrimSuffix(name, "Fast")]
	if !ok {
		return k, fmt.Errorf("%s: tokenizer_class %q of a SentencePiece model is not supported, only %q", file, name, slices.Sorted(maps.Keys(classes))[1:])
	}
	return k, nil
}

// addedTokens returns the tokens that are cut out of texts: tokens with numbers, T5's tokens, and
// tokens with a meaning. A token that is no piece and has no number comes after all others.
func (t *Tokenizer) addedTokens(c settings, k class, numbers map[string]int, file *pieceFile) (all []*added, err error) {
	at := make(map[string]*added)
	next := len(file.pieces)
	add := func(a added) {
		if at[a.Content] == nil {
			at[a.Content], next = &a, max(next, a.ID+1)
			all = append(all, &a)
		}
	}
	decoder, err1 := read(c, "added_tokens_decoder", map[int]added{})
	extra, err2 := read(c, "extra_ids", k.extra)
	if err := errors.Join(err1, err2); err != nil || extra < 0 || extra > 1<<16 {
		return nil, cmp.Or(err, fmt.Errorf("extra_ids is %d", extra))
	}
	for _, id := range slices.Sorted(maps.Keys(decoder)) {
		a := decoder[id]
		if a.ID = id; id >= 0 && id < len(file.pieces) && a.Content != file.pieces[id].text && file.pieces[id].kind == normalPiece {
			return nil, fmt.Errorf("added_tokens_decoder: token %d is %q, but the piece %q", id, a.Content, file.pieces[id].text)
		}
		add(a)
	}
	for _, content := range slices.Sorted(maps.Keys(numbers)) {
		add(added{ID: numbers[content], Content: content})
	}
	for i := range extra {
		content := fmt.Sprintf("<extra_id_%d>", i)
		if _, ok := t.ids[content]; !ok {
			add(added{ID: len(file.pieces) + extra - 1 - i, Content: content, Special: true})
		}
	}
	special, err := specialTokens(c)
	if len(k.names) > 0 {
		for _, p := range file.pieces {
			if p.kind == controlPiece {
				special = append(special, added{Content: p.text})
			}
		}
	}
	for _, a := range special {
		id, ok := t.ids[a.Content]
		a.ID = id
		if !ok {
			a.ID = next
		}
		add(a)
		at[a.Content].Special = true
	}
	return all, err
}

// specialTokens reads the tokens with a meaning.
func specialTokens(c settings) (all []added, err error) {
	add := func(key string, text json.RawMessage) {
		a, e := tokenOf(text)
		if e != nil && err == nil {
			err = fmt.Errorf("%s: %w", key, e)
		}
		if a.Content != "" {
			all = append(all, a)
		}
	}
	for _, key := range tokenKeys {
		if !absent(c[key]) {
			add(key, c[key])
		}
	}
	for _, key := range listKeys {
		list, e := read(c, key, []json.RawMessage{})
		if e != nil { // or by name
			var names map[string]json.RawMessage
			if names, e = read(c, key, names); e != nil {
				return nil, e
			}
			for _, name := range slices.Sorted(maps.Keys(names)) {
				list = append(list, names[name])
			}
		}
		for _, text := range list {
			add(key, text)
		}
	}
	return all, err
}

// set applies all other settings.
func (t *Tokenizer) set(c settings, k class, n *pieceNormalizer) error {
	if len(k.names) > 0 {
		t.BOS, t.EOS, t.Pad, t.Unknown = -1, -1, -1, -1
	}
	bos, err1 := read(c, "add_bos_token", k.bos)
	eos, err2 := read(c, "add_eos_token", k.eos)
	legacy, err3 := read(c, "legacy", k.legacy)
	prefix, err4 := read(c, "add_prefix_space", n.prefix)
	if err := errors.Join(t.name(c), err1, err2, err3, err4, known(c)); err != nil {
		return err
	}
	n.always, n.prefix = legacy, prefix
	for _, add := range []struct {
		key   string
		is    bool
		token int
		to    *[]int
	}{{"bos_token", bos, t.BOS, &t.before}, {"eos_token", eos, t.EOS, &t.after}} {
		switch {
		case add.is && add.token >= 0:
			*add.to = []int{add.token}
		case add.is && !absent(c["add_"+add.key]):
			return fmt.Errorf("add_%s is true, but there is no %s", add.key, add.key)
		}
	}
	return nil
}

// known refuses unknown keys, and values that are not supported.
func known(c settings) error {
	used := []string{"tokenizer_class", "add_bos_token", "add_eos_token", "legacy", "add_prefix_space", "extra_ids", "added_tokens_decoder"}
	only := map[string]string{"split_special_tokens": "false", "do_lower_case": "false", "sp_model_kwargs": "{}"}
	for _, key := range slices.Sorted(maps.Keys(c)) {
		value, ok := only[key]
		switch {
		case ok && !absent(c[key]) && string(c[key]) != value:
			return fmt.Errorf("%s %.80s is not supported, only %s", key, c[key], value)
		case !ok && !slices.Contains(slices.Concat(used, tokenKeys, listKeys, passedOver), key):
			return fmt.Errorf("%s %.80s is not known", key, c[key])
		}
	}
	return nil
}
