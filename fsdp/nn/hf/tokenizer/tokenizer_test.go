package tokenizer_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/fsdp/nn/hf/tokenizer"
)

// directories are those that testdata/make.py has made.
var directories = []string{"gpt2", "llama3", "qwen2", "roberta", "clip", "bert", "words", "t5", "xlmr", "llama2", "mistral", "pieces", "piecest5", "piecesllama"}

func opened(t require.TestingT, name string) *tokenizer.Tokenizer {
	tok, err := tokenizer.Open(filepath.Join("testdata", name))
	require.NoError(t, err)
	return tok
}

// lines returns the texts of the goldens.
func lines(t require.TestingT) (all []string) {
	text, err := os.ReadFile("testdata/lines.txt")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		var s string
		require.NoError(t, json.Unmarshal([]byte(line), &s))
		all = append(all, s)
	}
	return all
}

// TestTwice warns once of texts that begin with the tokens that the template adds.
func TestTwice(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	tok := opened(t, "llama2")
	require.Equal(t, tok.Encode("hi"), tok.EncodePlain("<s>hi"), "as a chat template renders it")
	require.Empty(t, log.String())
	for range 2 {
		require.Equal(t, []int{tok.BOS, tok.BOS}, tok.Encode("<s>hi")[:2])
	}
	require.Equal(t, 1, strings.Count(log.String(), "which Encode puts before every text, so the token is there twice: use EncodePlain"), log.String())
}

// TestGoldens compares with what the library tokenizers has made of lines in many scripts.
func TestGoldens(t *testing.T) {
	for _, name := range directories {
		t.Run(name, func(t *testing.T) {
			tok := opened(t, name)
			text, err := os.ReadFile(filepath.Join("testdata", name, "golden.json"))
			require.NoError(t, err)
			var rows []struct {
				IDs, Plain []int
				Text, All  string
			}
			require.NoError(t, json.Unmarshal(text, &rows))
			for i, line := range lines(t) {
				want := rows[i]
				require.Equal(t, want.IDs, append([]int{}, tok.Encode(line)...), "%q", line)
				require.Equal(t, want.Plain, append([]int{}, tok.EncodePlain(line)...), "%q", line)
				require.Equal(t, want.Text, tok.Decode(want.IDs), "%q", line)
				require.Equal(t, want.All, tok.DecodeAll(want.IDs), "%q", line)
			}
		})
	}
}

// TestSpecial looks at tokens by name.
func TestSpecial(t *testing.T) {
	for name, want := range map[string][4]int{ // BOS, EOS, Pad, Unknown
		"gpt2": {0, 0, -1, -1}, "llama3": {0, 1, -1, -1}, "qwen2": {-1, 2, 0, -1}, "roberta": {0, 2, -1, 3},
		"bert": {-1, -1, 0, 1}, "t5": {-1, 1, 0, 2}, "llama2": {1, 2, -1, -1},
	} {
		tok := opened(t, name)
		require.Equal(t, want, [4]int{tok.BOS, tok.EOS, tok.Pad, tok.Unknown}, name)
		for _, id := range want {
			if id >= 0 {
				text, ok := tok.Token(id)
				require.True(t, ok)
				again, ok := tok.ID(text)
				require.True(t, ok)
				require.Equal(t, id, again)
				require.True(t, tok.IsSpecial(id))
				require.Equal(t, []int{id}, tok.EncodePlain(text), "%s: %s stands in a text", name, text)
			}
		}
		require.Positive(t, tok.Size)
		_, ok := tok.Token(tok.Size)
		require.False(t, ok)
		_, ok = tok.Token(tok.Size - 1)
		require.True(t, ok)
		_, ok = tok.ID("no such token")
		require.False(t, ok)
		require.Empty(t, tok.Decode([]int{-1, tok.Size, 1 << 40}))
	}
}

// TestRoundTrip decodes what it has encoded, for tokens that stand for bytes: any text, and any
// bytes with what is no text replaced.
func TestRoundTrip(t *testing.T) {
	gpt2, llama2 := opened(t, "gpt2"), opened(t, "llama2")
	piece := rapid.OneOf(rapid.String(), rapid.SampledFrom(lines(t)), rapid.StringMatching(`[ \t\n]{0,300}`),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 8), func(b []byte) string { return string(b) }))
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(piece, 0, 4).Draw(t, "pieces"), "")
		want := text
		if !utf8.ValidString(text) {
			want = gpt2.DecodeAll(gpt2.EncodePlain(text))
			require.True(t, utf8.ValidString(want))
			require.Equal(t, strings.ReplaceAll(strings.ToValidUTF8(text, ""), "\uFFFD", ""), strings.ReplaceAll(want, "\uFFFD", ""))
		}
		require.Equal(t, want, gpt2.DecodeAll(gpt2.EncodePlain(text)))
		if !strings.ContainsAny(want, "<▁") { // which llama2 has for tokens and spaces
			require.Equal(t, want, llama2.DecodeAll(llama2.EncodePlain(text)))
		}
	})
}

// TestLong encodes a text that has one word as the sum of its parts, in time that grows with it.
func TestLong(t *testing.T) {
	for _, name := range directories {
		tok := opened(t, name)
		for _, part := range []string{"hello ", " ", "x", "日本", "\n", "a,\t"} {
			text := strings.Repeat(part, 20_000)
			ids := tok.EncodePlain(text)
			if name == "gpt2" || name == "llama3" {
				require.Equal(t, text, tok.Decode(ids))
			}
		}
	}
}

// TestOpenErrors names the part of the file that is wrong or not supported.
func TestOpenErrors(t *testing.T) {
	file := func(part string) string {
		parts := map[string]string{"normalizer": "null", "pre_tokenizer": "null", "post_processor": "null", "decoder": "null", "added_tokens": "[]",
			"model": `{"type": "BPE", "vocab": {"a": 0}, "merges": []}`}
		name, value, _ := strings.Cut(part, "=")
		parts[name] = value
		var all []string
		for name, value := range parts {
			all = append(all, `"`+name+`": `+value)
		}
		return "{" + strings.Join(all, ",") + "}"
	}
	for _, c := range []struct{ file, config, want string }{
		{"", "", "tokenizer.json: EOF"},
		{"[]", "", "tokenizer.json: json: cannot unmarshal array"},
		{file(`later=1`), "", `tokenizer.json: json: unknown field "later"`},
		{file(`normalizer={"type": "Nmt"}`), "", `tokenizer.json: normalizer: type "Nmt" is not supported`},
		{file(`normalizer={"type": "Sequence", "normalizers": [{"type": "X"}]}`), "", `normalizer: type "X" is not supported`},
		{file(`normalizer={"type": "Strip", "strip_middle": true}`), "", `normalizer: json: unknown field "strip_middle"`},
		{file(`normalizer={"type": "Precompiled", "precompiled_charsmap": "/////w=="}`), "", `normalizer: precompiled_charsmap is too short`},
		{file(`normalizer={"type": "Precompiled", "precompiled_charsmap": "?"}`), "", `normalizer: illegal base64`},
		{file(`normalizer={"type": "Replace", "pattern": {"Regex": "(?<=a)b"}, "content": ""}`), "", `normalizer: pattern "(?<=a)b" is not supported`},
		{file(`normalizer={"type": "Replace", "pattern": {}, "content": ""}`), "", `normalizer: pattern {} is not supported`},
		{file(`pre_tokenizer={"type": "UnicodeScripts"}`), "", `pre_tokenizer: type "UnicodeScripts" is not supported`},
		{file(`pre_tokenizer={"type": "Split", "pattern": {"Regex": "\\s+(?!\\S)"}, "behavior": "Isolated", "invert": false}`), "", `pre_tokenizer: pattern "\\s+(?!\\S)" is not supported`},
		{file(`pre_tokenizer={"type": "Split", "pattern": {"String": "a"}, "behavior": "Lost", "invert": false}`), "", `pre_tokenizer: behavior "Lost" is not supported`},
		{file(`pre_tokenizer={"type": "Metaspace", "prepend_scheme": "last"}`), "", `pre_tokenizer: prepend_scheme "last"`},
		{file(`post_processor={"type": "Other"}`), "", `post_processor: type "Other" is not supported`},
		{file(`post_processor={"type": "BertProcessing", "sep": ["a"], "cls": ["a", 0]}`), "", `post_processor: [a] is not a token and its number`},
		{file(`post_processor={"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}], "special_tokens": {}}`), "", `post_processor: template`},
		{file(`decoder={"type": "CTC"}`), "", `decoder: type "CTC" is not supported`},
		{file(`decoder={"type": "Strip", "content": "", "start": 1, "stop": 0}`), "", `decoder: content "" is not a character`},
		{file(`model={"type": "WordPiece", "vocab": {"a": 0}, "unk_token": ""}`), "", `model: unk_token "" is not supported`},
		{file(`model={"type": "WordLevel"}`), "", `model: type "WordLevel" is not supported`},
		{file(`model={"type": "BPE", "dropout": 0.1}`), "", `model: dropout 0.1 is not supported`},
		{file(`model={"type": "BPE", "vocab": {"a": 0}, "unk_token": "b"}`), "", `model: unk_token "b" is not a token`},
		{file(`model={"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}`), "", `model: merge "a b": "b" is not a token`},
		{file(`model={"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]}`), "", `model: merge "a" is not a pair`},
		{file(`model={"type": "BPE", "vocab": {"a": -1}}`), "", `token "a" has number -1`},
		{file(`model={"type": "Unigram", "vocab": [["a", 0]], "unk_id": 1}`), "", `model: unk_id 1 is not one of the 1 tokens`},
		{file(`model={"type": "Unigram", "vocab": [["a", "b"]], "unk_id": 0}`), "", `model: vocab: [a b] is not a token with its score`},
		{file(`model={"type": "Unigram", "vocab": [["a", 0]], "unk_id": null}`), "", `model: unk_id null is not supported`},
		{file(`added_tokens=[{"id": 3, "content": ""}]`), "", `added_tokens: `},
		{file("added_tokens=[]"), `{"bos_token": "b"}`, `tokenizer_config.json: bos_token "b" is not a token`},
		{file("added_tokens=[]"), `{"bos_token": "a", "add_bos_token": true}`, `tokenizer_config.json: add_bos_token is true, but the post_processor of tokenizer.json says false`},
		{file("added_tokens=[]"), `{"eos_token": "a", "add_eos_token": true}`, `tokenizer_config.json: add_eos_token is true, but the post_processor of tokenizer.json says false`},
		{file("added_tokens=[]"), `x`, `tokenizer_config.json: invalid character`},
	} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(c.file), 0o600))
		if c.config != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(c.config), 0o600))
		}
		_, err := tokenizer.Open(dir)
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, err, "tokenizer: "+dir)
	}
	_, err := tokenizer.Open(t.TempDir())
	require.ErrorContains(t, err, "tokenizer.json: no such file")
}

// FuzzOpen opens any tokenizer.json, and encodes and decodes with what it opens: nothing panics.
func FuzzOpen(f *testing.F) {
	f.Add(`{"model": {"type": "BPE", "vocab": {"a": 0, "ab": 1, "b": 2}, "merges": ["a b"]},
		"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\s+(?!\\S)|\\s+|a"}, "behavior": "Isolated"}, "decoder": {"type": "ByteLevel"}}`, "ab \xff ab")
	f.Add(`{"model": {"type": "WordPiece", "vocab": {"a": 0, "##b": 1, "[UNK]": 2}}, "normalizer": {"type": "BertNormalizer", "lowercase": true},
		"pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": {"type": "BertProcessing", "cls": ["a", 0], "sep": ["b", 1]},
		"decoder": {"type": "WordPiece"}}`, "Ab, ab")
	f.Add(`{"model": {"type": "Unigram", "unk_id": 0, "vocab": [["?", 0], ["▁a", -1], ["b", -2]]}, "pre_tokenizer": {"type": "Metaspace"},
		"normalizer": {"type": "Precompiled", "precompiled_charsmap": "CAAAAAAAAAABAgMEYQBi"}, "decoder": {"type": "Metaspace"},
		"added_tokens": [{"id": 3, "content": "ab", "lstrip": true, "rstrip": true, "single_word": true}]}`, "a ab b")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, file, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(file), 0o600))
		tok, err := tokenizer.Open(dir)
		if err != nil {
			require.True(t, strings.HasPrefix(err.Error(), "tokenizer: "), err)
			return
		}
		tok.DecodeAll(tok.Encode(text))
	})
}

func BenchmarkEncode(b *testing.B) {
	text := strings.Join(lines(b), "\n")
	for _, name := range directories {
		tok := opened(b, name)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				tok.Encode(text)
			}
		})
	}
}

// TestAddedTokensAreNotTheModels: the model knows no added token, and may have no vocabulary at
// all.
func TestAddedTokensAreNotTheModels(t *testing.T) {
	dir := t.TempDir()
	for _, model := range []string{`{"type": "BPE", "vocab": {"?": 0}, "merges": [], "unk_token": "?"}`, `{"type": "BPE", "merges": []}`} {
		text := `{"model": ` + model + `, "added_tokens": [{"id": 1, "content": "x", "single_word": true}]}`
		require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(text), 0o600))
		tok, err := tokenizer.Open(dir)
		require.NoError(t, err)
		require.Equal(t, []int{1}, tok.Encode("x"))
		require.NotContains(t, tok.Encode("xy"), 1)
	}
}

// TestStrip takes characters off the ends of tokens, and needs no longer for more than there are.
func TestStrip(t *testing.T) {
	dir := t.TempDir()
	text := `{"model": {"type": "BPE", "vocab": {"éébé": 0}, "merges": []}, "decoder": {"type": "Strip", "content": "é", "start": 1, "stop": 9000000000000000000}}`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(text), 0o600))
	tok, err := tokenizer.Open(dir)
	require.NoError(t, err)
	require.Equal(t, "éb", tok.Decode([]int{0}))
}
