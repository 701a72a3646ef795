package tokenizer_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/fsdp/nn/hf/tokenizer"
)

// A chatGolden is what transformers makes of conversations with one template.
type chatGolden struct {
	Name, Tokenizer  string
	BOS, EOS         *string
	Template, Marked string
	Chats            []struct {
		Chat                  tokenizer.Chat
		Refused, Text, Prompt string
		IDs                   []int
		Answer                string
	}
}

func chatGoldens(t require.TestingT) (special map[string]json.RawMessage, list []chatGolden) {
	text, err := os.ReadFile("testdata/chat.json")
	require.NoError(t, err)
	var file struct {
		Special   map[string]json.RawMessage
		Templates []chatGolden
	}
	require.NoError(t, json.Unmarshal(text, &file))
	return file.Special, file.Templates
}

// withTemplate opens a tokenizer of testdata with more special tokens and a chat template, which is
// in tokenizer_config.json or a file of its own.
func withTemplate(t *testing.T, special json.RawMessage, g chatGolden, template string, own bool) *tokenizer.Tokenizer {
	text, err := os.ReadFile(filepath.Join("testdata", g.Tokenizer, "tokenizer.json"))
	require.NoError(t, err)
	var file map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(text, &file))
	file["added_tokens"] = special
	config := map[string]any{"bos_token": g.BOS, "eos_token": g.EOS}
	dir := t.TempDir()
	if own {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(template), 0o600))
		config["chat_template"] = "not read"
	} else {
		config["chat_template"] = template
	}
	for name, v := range map[string]any{"tokenizer.json": file, "tokenizer_config.json": config} {
		text, err := json.Marshal(v)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	tok, err := tokenizer.Open(dir)
	require.NoError(t, err)
	return tok
}

// TestChatTemplates compares texts, tokens and the tokens of answers with transformers: by
// templates that mark the answers, and by the same ones without marks.
func TestChatTemplates(t *testing.T) {
	special, list := chatGoldens(t)
	for _, g := range list {
		t.Run(g.Name, func(t *testing.T) {
			for i, template := range []string{g.Template, g.Marked, strings.ReplaceAll(g.Template, "\n", "\r\n")} {
				tok := withTemplate(t, special[g.Tokenizer], g, template, i == 0)
				for _, c := range g.Chats {
					text, err := tok.ApplyChatTemplate(c.Chat, false)
					if c.Refused != "" {
						require.ErrorContains(t, err, c.Refused)
						continue
					}
					require.NoError(t, err)
					require.Equal(t, c.Text, text, "template %d", i)
					prompt := c.Chat
					prompt.Messages = prompt.Messages[:len(prompt.Messages)-1]
					text, err = tok.ApplyChatTemplate(prompt, true)
					require.NoError(t, err)
					require.Equal(t, c.Prompt, text)

					ids, answer, err := tok.EncodeChat(c.Chat)
					require.NoError(t, err)
					require.Equal(t, c.IDs, ids)
					require.Equal(t, c.IDs, tok.EncodePlain(c.Text))
					require.Equal(t, marks(tok, c.IDs, want(c.Answer)), marks(tok, ids, answer), "template %d: %s", i, c.Text)
				}
			}
		})
	}
}

// TestThinking: what the prompt for generation has is no part of the answer.
func TestThinking(t *testing.T) {
	special, list := chatGoldens(t)
	for _, g := range list {
		if g.Name != "qwen3" {
			continue
		}
		tok := withTemplate(t, special[g.Tokenizer], g, g.Template, true)
		c := tokenizer.Chat{Messages: []tokenizer.Message{{Role: "user", Content: "a"}, {Role: "assistant", Content: "b"}}}
		for value, want := range map[string]string{"true": "«< t h in k > Ċ Ċ < / t h in k > Ċ Ċ b <|im_end|>» Ċ ", "false": "«b <|im_end|>» Ċ "} {
			c.Kwargs = map[string]json.RawMessage{"enable_thinking": json.RawMessage(value)}
			ids, answer, err := tok.EncodeChat(c)
			require.NoError(t, err)
			require.Regexp(t, regexp.QuoteMeta(want)+"$", marks(tok, ids, answer))
		}
	}
}

// want returns the mask of a golden.
func want(answer string) (mask []bool) {
	for _, c := range answer {
		mask = append(mask, c == '1')
	}
	return mask
}

// marks returns tokens with brackets around the answers.
func marks(tok *tokenizer.Tokenizer, ids []int, answer []bool) string {
	var b strings.Builder
	for i, id := range ids {
		if answer[i] && (i == 0 || !answer[i-1]) {
			b.WriteString("«")
		}
		token, _ := tok.Token(id)
		b.WriteString(token)
		if answer[i] && (i+1 == len(ids) || !answer[i+1]) {
			b.WriteString("»")
		}
		b.WriteString(" ")
	}
	return b.String()
}

// TestChatErrors names what is wrong with a template or a conversation.
func TestChatErrors(t *testing.T) {
	special, list := chatGoldens(t)
	g := list[0]
	_, _, err := opened(t, "llama2").EncodeChat(tokenizer.Chat{Messages: []tokenizer.Message{{Role: "user", Content: "a"}}})
	require.EqualError(t, err, "tokenizer: there is no chat template: this may be a base model, so copy chat_template.jinja from a model that was trained for chats")
	ask, say := tokenizer.Message{Role: "user", Content: "a"}, tokenizer.Message{Role: "assistant", Content: "b"}
	for _, c := range []struct {
		template string
		messages []tokenizer.Message
		want     string
	}{
		{"{% if %}", []tokenizer.Message{ask, say}, "the chat template is not supported: at the end of a tag: want a value"},
		{"{{ raise_exception('no') }}", []tokenizer.Message{ask, say}, "the chat template refuses the conversation of user, assistant: "},
		{"{{ messages[0].content }}", nil, "the conversation has no messages"},
		{"{{ messages[0].content }}", []tokenizer.Message{ask}, "the conversation of user has no answer: want a message of the assistant"},
		{"{{ messages[0].content }}", []tokenizer.Message{ask, say}, "message 1: the chat template leaves out the answer"},
		{"{% generation %}{{ messages[0].content }}", []tokenizer.Message{ask, say}, "the chat template is not supported: {% endgeneration %} is missing"},
		{"{% generation %}{% generation %}{{ messages[0].content }}{% endgeneration %}{% endgeneration %}", []tokenizer.Message{ask, say}, "a generation block of the chat template has no end, or is within another one"},
		{"{% for m in messages[::-1] %}{{ m.content }}{% endfor %}", []tokenizer.Message{say, ask, say}, "message 2: cannot find the answer in the text of the chat template"},
	} {
		_, _, err := withTemplate(t, special[g.Tokenizer], g, c.template, true).EncodeChat(tokenizer.Chat{Messages: c.messages})
		require.ErrorContains(t, err, "tokenizer: "+c.want, c.template)
	}
	var m tokenizer.Chat
	const parts = `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "text", "text": "b"}]}]}`
	require.NoError(t, json.Unmarshal([]byte(parts), &m))
	_, _, err = withTemplate(t, special[g.Tokenizer], g, "{% for m in messages %}{{ m.content }}{% endfor %}", true).EncodeChat(m)
	require.ErrorContains(t, err, "message 1: the content of the answer is no text: give one text, or mark answers by {% generation %} in the template")
	require.ErrorContains(t, json.Unmarshal([]byte(`{"messages": [{"content": "a"}]}`), &m), `a message has no role: {"content": "a"}`)
}

// TestNamedTemplates reads a list of templates, of which one is for tools.
func TestNamedTemplates(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS("testdata/qwen2")))
	write := func(list string) *tokenizer.Tokenizer {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(`{"chat_template": `+list+`}`), 0o600))
		tok, err := tokenizer.Open(dir)
		require.NoError(t, err)
		return tok
	}
	c := tokenizer.Chat{Messages: []tokenizer.Message{{Role: "user", Content: "a"}}}
	tok := write(`[{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]`)
	text, err := tok.ApplyChatTemplate(c, false)
	require.NoError(t, err)
	require.Equal(t, "plain", text)
	c.Tools = []json.RawMessage{[]byte("{}")}
	text, err = tok.ApplyChatTemplate(c, false)
	require.NoError(t, err)
	require.Equal(t, "tools", text)
	_, err = write(`[{"name": "rag", "template": ""}]`).ApplyChatTemplate(c, false)
	require.ErrorContains(t, err, `there are the chat templates ["rag"] and no default: write one of them to chat_template.jinja`)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(`{"chat_template": 3}`), 0o600))
	_, err = tokenizer.Open(dir)
	require.ErrorContains(t, err, "tokenizer_config.json: chat_template: ")
}

// TestEndless warns once if nothing ends the answers.
func TestEndless(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	special, list := chatGoldens(t)
	tok := withTemplate(t, special[list[0].Tokenizer], list[0], "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}", false)
	c := tokenizer.Chat{Messages: []tokenizer.Message{{Role: "user", Content: "a"}, {Role: "assistant", Content: "b"}, {Role: "user", Content: "c"}}}
	for range 2 {
		ids, answer, err := tok.EncodeChat(c)
		require.NoError(t, err)
		require.Contains(t, marks(tok, ids, answer), ": «▁ b <0x0A> <0x0A>» u")
	}
	require.Equal(t, 1, strings.Count(log.String(), "ends answers with no special token"), log.String())
}

// FuzzChat renders any template: text, or an error.
func FuzzChat(f *testing.F) {
	_, list := chatGoldens(f)
	for _, g := range list {
		f.Add(g.Template)
		f.Add(g.Marked)
	}
	c := list[0].Chats[1].Chat
	dir := f.TempDir()
	require.NoError(f, os.CopyFS(dir, os.DirFS("testdata/qwen2")))
	f.Fuzz(func(t *testing.T, template string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(template), 0o600))
		tok, err := tokenizer.Open(dir)
		require.NoError(t, err)
		ids, answer, err := tok.EncodeChat(c)
		if err == nil {
			require.Len(t, answer, len(ids))
		}
	})
}
