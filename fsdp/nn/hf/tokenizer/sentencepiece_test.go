package tokenizer_test

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gofsdp/gofsdp/fsdp/nn/hf/tokenizer"
)

// field encodes a field of a message: a text, a score, or a number.
func field(number protowire.Number, value any) string {
	switch v := value.(type) {
	case string:
		return string(protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), v))
	case float64:
		return string(protowire.AppendFixed32(protowire.AppendTag(nil, number, protowire.Fixed32Type), math.Float32bits(float32(v))))
	}
	return string(protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), uint64(value.(int))))
}

// piece encodes one.
func piece(text string, score float64, kind int) string {
	return field(1, field(1, text)+field(2, score)+field(3, kind))
}

// The numbers of fields, and of kinds of pieces and of models.
const (
	trainer, normalizer, denormalizer                = 2, 3, 5
	normal, unknown, control, user, unused, byteKind = 1, 2, 3, 4, 5, 6
	bpe                                              = 2
)

// openedPieces opens a directory of files.
func openedPieces(t testing.TB, files map[string]string) (*tokenizer.Tokenizer, error) {
	dir := t.TempDir()
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return tokenizer.Open(dir)
}

// TestPieceErrors names what is wrong with a model, or not supported.
func TestPieceErrors(t *testing.T) {
	unk := piece("?", 0, unknown)
	for _, c := range []struct{ model, want string }{
		{"", "not a SentencePiece model: it has no pieces"},
		{"IQ== 0\nIg== 1\n", "not a SentencePiece model: "}, // as Llama 3 has it
		{"\x0a\xff\xff\xff\xff\x7f", "not a SentencePiece model: "},
		{strings.Repeat("\x0b", 1<<20), "not a SentencePiece model: "},
		{field(1, 3), "not a SentencePiece model: field 1: wire type 0, want 2"},
		{field(1, field(2, "x")), "not a SentencePiece model: field 1: field 2: wire type 2, want 5"},
		{unk + field(normalizer, field(3, "x")), "not a SentencePiece model: field 3: normalizer_spec: field 3: wire type 2, want 0"},
		{unk + field(trainer, field(3, 4)), "trainer_spec.model_type 4 is not supported, only 1, unigram, and 2, BPE"},
		{unk + field(trainer, field(24, 1)), "trainer_spec.treat_whitespace_as_suffix true is not supported"},
		{unk + field(normalizer, field(5, 0)), "normalizer_spec.escape_whitespaces false is not supported"},
		{unk + field(denormalizer, field(2, "x")), "denormalizer_spec.precompiled_charsmap is not supported"},
		{unk + field(normalizer, field(2, "\xff\xff\xff\xff")), "normalizer_spec: precompiled_charsmap is too short"},
		{piece("a", 0, normal), "the pieces for unknown characters are incomplete"},
		{unk + field(trainer, field(35, 1)), "the pieces for unknown characters are incomplete"},
		{unk + piece("", 0, normal), `piece 1 "" is not valid text`},
		{unk + piece("\xff", 0, normal), `piece 1 "\xff" is not valid text`},
		{unk + unk, `piece 1 "?" is also piece 0`},
		{unk + piece("a", 0, 7), `piece 1 "a" has unknown type 7`},
		{unk + piece("a", math.NaN(), normal), `piece 1 "a" has no score`},
		{unk + piece("<0x00>", 0, byteKind), `piece 1 "<0x00>" is a byte, but trainer_spec.byte_fallback is false`},
		{unk + piece("a", 0, unused) + field(trainer, field(3, bpe)), `piece 1 "a" is unused, which is not supported for BPE`},
		{unk + piece("a", 0, normal) + piece("ab", 0, normal) + field(trainer, field(3, bpe)), `piece 2 "ab": the character 'b' is not a piece`},
		{unk + piece(strings.Repeat("a", 1025), 0, normal) + field(trainer, field(3, bpe)), `piece 1 "aaaaaaaaaaaaaaaaaaaa"… has 1025 bytes, more than 1024`},
	} {
		_, err := openedPieces(t, map[string]string{"spiece.model": c.model})
		require.ErrorContains(t, err, "spiece.model: "+c.want)
	}
	_, err := openedPieces(t, nil)
	require.ErrorContains(t, err, "tokenizer.json: no such file")
	require.ErrorContains(t, err, "there is no tokenizer.model or spiece.model")
}

// TestPieces goes through what models may say and those of testdata do not. SentencePiece has
// computed the same.
func TestPieces(t *testing.T) {
	model := piece("?", 0, unknown) + piece("</s>", 0, control)
	for i, text := range []string{"▁", "a", "b", "ab", "bc", "c", "aa"} { // from 2 on
		model += piece(text, -float64(i+1), normal)
	}
	for _, c := range []struct {
		more, text string
		want       []int
	}{
		{"", "ab  xy</s>", []int{2, 5, 2, 0}},
		{piece("ab c", -1, unused), "ab▁c", []int{2, 5, 2, 7}},
		{piece("abx", 0, user), "ababxb", []int{2, 5, 9, 4}},
		{field(normalizer, field(3, 0)), "ab", []int{5}},           // add_dummy_prefix
		{field(normalizer, field(4, 0)), " b ", []int{2, 2, 4, 2}}, // remove_extra_whitespaces
		{field(trainer, field(3, bpe)), "abc", []int{2, 5, 7}},     // ab is better than bc
		{field(trainer, field(3, bpe)), "aaab xx", []int{2, 8, 5, 2, 0}},
		{field(trainer, field(3, bpe)) + piece("aaa", 1, normal), "aaaaa", []int{2, 9, 8}}, // from left to right
		{field(trainer, field(3, bpe)) + piece("aab", 9, user), "aaabaab", []int{2, 3, 9, 9}},
		{field(trainer, field(3, bpe)) + piece("x", 9, user) + piece("ax", 9, normal), "ax", []int{2, 3, 9}},
	} {
		tok, err := openedPieces(t, map[string]string{"tokenizer.model": model + c.more})
		require.NoError(t, err)
		require.Equal(t, c.want, tok.Encode(c.text), "%q", c.text)
	}
}

// TestPieceSettings reads what lies beside a model: tokens by number, by name and by class.
func TestPieceSettings(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		require.NoError(t, err)
		return string(text)
	}
	llama, t5 := read("piecesllama/tokenizer.model"), read("piecest5/spiece.model")
	for _, c := range []struct {
		model, config string
		special       string // special_tokens_map.json
		want          [5]int // BOS, EOS, Pad, Unknown, Size
		text          string
		ids           string // as tokens
	}{
		{llama, ``, ``, [5]int{1, 2, -1, 0, 560}, "a<s>", "▁ a < s >"},
		{llama, `{"add_eos_token": true}`, ``, [5]int{1, 2, -1, 0, 560}, "a<s>", "▁ a < s > </s>"},
		{llama, `{"tokenizer_class": "LlamaTokenizerFast"}`, ``, [5]int{1, 2, -1, 0, 560}, "a<s>a", "<s> ▁ a <s> a"},
		{llama, `{"tokenizer_class": "LlamaTokenizer", "legacy": true}`, ``, [5]int{1, 2, -1, 0, 560}, "a<s>a", "<s> ▁ a <s> ▁ a"},
		{llama, `{"tokenizer_class": "LlamaTokenizer", "add_prefix_space": false}`, ``, [5]int{1, 2, -1, 0, 560}, "a", "<s> a"},
		{llama, `{"tokenizer_class": "LlamaTokenizer", "add_bos_token": false, "add_eos_token": true}`, ``, [5]int{1, 2, -1, 0, 560}, "a", "▁ a </s>"},
		{llama, `{"tokenizer_class": "LlamaTokenizer", "bos_token": null}`, ``, [5]int{-1, 2, -1, 0, 560}, "a", "▁ a"},
		{llama, `{"tokenizer_class": "LlamaTokenizer", "pad_token": "[PAD]"}`, ``, [5]int{1, 2, 560, 0, 561}, "[PAD]", "<s> [PAD]"},
		{llama, `{"tokenizer_class": "LlamaTokenizer", "pad_token": null}`, `{"pad_token": "<unk>"}`, [5]int{1, 2, 0, 0, 560}, "a", "<s> ▁ a"},
		{llama, `{"tokenizer_class": "LlamaTokenizer", "added_tokens_decoder": {"563": {"content": "aa", "lstrip": true}}, "extra_special_tokens": {"x": "bb"}}`, ``,
			[5]int{1, 2, -1, 0, 565}, "a aabb", "<s> ▁ a aa bb"},
		{llama, `{"tokenizer_class": "SentencePieceBackend", "additional_special_tokens": ["aa"]}`, ``, [5]int{1, 2, -1, 0, 561}, "aaa", "aa ▁ a"},
		{t5, `{"tokenizer_class": "T5Tokenizer", "sp_model_kwargs": {}}`, ``, [5]int{-1, 1, 0, 2, 350}, "<extra_id_0> a", "<extra_id_0> ▁ a </s>"},
		{t5, `{"tokenizer_class": "T5Tokenizer", "extra_ids": 0}`, ``, [5]int{-1, 1, 0, 2, 250}, "", "</s>"},
	} {
		files := map[string]string{"tokenizer.model": c.model, "tokenizer_config.json": c.config, "special_tokens_map.json": c.special}
		for name, text := range files {
			if text == "" {
				delete(files, name)
			}
		}
		tok, err := openedPieces(t, files)
		require.NoError(t, err, c.config)
		require.Equal(t, c.want, [5]int{tok.BOS, tok.EOS, tok.Pad, tok.Unknown, tok.Size}, c.config)
		var tokens []string
		for _, id := range tok.Encode(c.text) {
			token, ok := tok.Token(id)
			require.True(t, ok)
			tokens = append(tokens, token)
		}
		require.Equal(t, c.ids, strings.Join(tokens, " "), c.config)
	}
	id, ok := opened(t, "piecest5").ID("<extra_id_0>")
	require.True(t, ok)
	require.Equal(t, 252, id)
	require.Equal(t, "a", opened(t, "piecest5").Decode([]int{252, opened(t, "piecest5").EncodePlain("a")[1]}))

	for _, c := range []struct{ file, text, want string }{
		{"tokenizer_config.json", `{"tokenizer_class": "XLMRobertaTokenizer"}`,
			`tokenizer_class "XLMRobertaTokenizer" of a SentencePiece model is not supported, only ["LlamaTokenizer" "SentencePieceBackend" "T5Tokenizer"]`},
		{"config.json", `{"tokenizer_class": "CamembertTokenizer"}`, `tokenizer_class "CamembertTokenizer" of a SentencePiece model is not supported`},
		{"tokenizer_config.json", `{"tokenizer_class": 3}`, "tokenizer_class: json: cannot unmarshal number"},
		{"tokenizer_config.json", `{"sp_model_kwargs": {"nbest_size": 3}}`, `sp_model_kwargs {"nbest_size": 3} is not supported, only {}`},
		{"tokenizer_config.json", `{"do_lower_case": true}`, "do_lower_case true is not supported, only false"},
		{"tokenizer_config.json", `{"keep_accents": true}`, "keep_accents true is not known"},
		{"tokenizer_config.json", `{"bos_token": 3}`, "bos_token: json: cannot unmarshal number"},
		{"tokenizer_config.json", `{"extra_ids": -1}`, "extra_ids is -1"},
		{"tokenizer_config.json", `{"extra_ids": 1000000000}`, "extra_ids is 1000000000"},
		{"tokenizer_config.json", `{"legacy": 1}`, "legacy: json: cannot unmarshal number"},
		{"tokenizer_config.json", `{"additional_special_tokens": 1}`, "additional_special_tokens: json: cannot unmarshal number"},
		{"tokenizer_config.json", `{"added_tokens_decoder": {"300": {"content": "x"}}}`, `added_tokens_decoder: token 300 is "x", but the piece "`},
		{"tokenizer_config.json", `{"added_tokens_decoder": {"x": {"content": "x"}}}`, `added_tokens_decoder: json: cannot unmarshal`},
		{"tokenizer_config.json", `{"added_tokens_decoder": {"-1": {"content": "x"}}}`, `added_tokens: `},
		{"tokenizer_config.json", `{"tokenizer_class": "T5Tokenizer", "add_bos_token": true}`, "add_bos_token is true, but there is no bos_token"},
		{"tokenizer_config.json", `[]`, "json: cannot unmarshal array"},
		{"special_tokens_map.json", `{"legacy": true}`, "unknown legacy true"},
		{"added_tokens.json", `{"x": "y"}`, "json: cannot unmarshal string"},
		{"added_tokens.json", `x`, "invalid character"},
	} {
		_, err := openedPieces(t, map[string]string{"tokenizer.model": llama, c.file: c.text})
		require.ErrorContains(t, err, c.file+": "+c.want)
	}
}

// FuzzPieces opens any model, and encodes and decodes with what it opens: nothing panics, and a
// small file takes no more than a little memory.
func FuzzPieces(f *testing.F) {
	for _, name := range []string{"pieces/tokenizer", "piecest5/spiece", "piecesllama/tokenizer"} {
		text, err := os.ReadFile(filepath.Join("testdata", name+".model"))
		require.NoError(f, err)
		f.Add(string(text), "Hello  <s> 日本 free")
	}
	f.Add(piece("?", 0, unknown)+piece("ab", 1, user)+piece("<s>", math.Inf(1), control)+field(normalizer, field(2, "\b\x00\x00\x00\x00\x00\x00\x00\x01\x02\x03\x04a\x00b")), "ab")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, model, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.model"), []byte(model), 0o600))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		tok, err := tokenizer.Open(dir)
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20+500*len(model)))
		if err != nil {
			require.True(t, strings.HasPrefix(err.Error(), "tokenizer: "), err)
			return
		}
		tok.DecodeAll(tok.Encode(text))
	})
}
