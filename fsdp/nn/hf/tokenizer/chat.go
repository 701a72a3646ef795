package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/gofsdp/gofsdp/fsdp/nn/hf/tokenizer/internal/jinja"
	"github.com/gofsdp/gofsdp/internal/caught"
)

// A Chat is a conversation. In JSON it is an object with the member messages, as in the lines of
// most files for fine-tuning:
//
//	{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}
type Chat struct {
	Messages []Message `json:"messages"`
	// Tools are JSON objects that describe functions, for templates that take them.
	Tools []json.RawMessage `json:"tools,omitempty"`
	// Kwargs are further variables of the template, such as enable_thinking or date_string.
	Kwargs map[string]json.RawMessage `json:"chat_template_kwargs,omitempty"`
}

// A Message is one message of a conversation. A message that is read from JSON keeps its other
// members, such as tool_calls, for the template.
type Message struct {
	Role    string
	Content string // or "" if the JSON has no text there

	object []byte // JSON that the message was read from
}

// UnmarshalJSON implements [json.Unmarshaler].
func (m *Message) UnmarshalJSON(text []byte) error {
	var o struct {
		Role    *string
		Content json.RawMessage
	}
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	if o.Role == nil {
		return fmt.Errorf("a message has no role: %.80s", text)
	}
	*m = Message{Role: *o.Role, object: bytes.Clone(text)}
	if len(o.Content) > 0 && o.Content[0] == '"' {
		return json.Unmarshal(o.Content, &m.Content)
	}
	return nil
}

// value returns the message as a value of the template.
func (m *Message) value() (*jinja.Dict, error) {
	d := new(jinja.Dict)
	if m.object != nil {
		v, err := jinja.Decode(m.object)
		if err != nil {
			return nil, err
		}
		d = v.(*jinja.Dict) // UnmarshalJSON has seen it
	}
	d.Set("role", m.Role)
	content, ok := d.Get("content")
	if _, isText := content.(string); isText || !ok && m.object == nil {
		d.Set("content", m.Content)
	}
	return d, nil
}

// calls reports whether the message calls tools.
func (m *Message) calls() bool {
	return bytes.Contains(m.object, []byte(`"tool_calls"`))
}

// chatTemplate is the chat template of a tokenizer.
type chatTemplate struct {
	sources map[string]string // by name: "default", and perhaps others such as "tool_use"
	tokens  map[string]string // special tokens by key: "bos_token"

	mu       sync.Mutex
	compiled map[string]*jinja.Template // by source
}

const (
	templateFile = "chat_template.jinja"
	maxSource    = 1 << 17 // bytes of a template
)

var unmarked = strings.NewReplacer(jinja.MarkStart, "", jinja.MarkEnd, "")

// readTemplate reads the chat template in a directory, if there is one. As in transformers, a file
// of its own comes before the key of tokenizer_config.json.
func (t *Tokenizer) readTemplate(dir string, c settings) error {
	t.chat.tokens = make(map[string]string)
	for _, key := range tokenKeys {
		if token, err := tokenOf(c[key]); err == nil && !absent(c[key]) {
			t.chat.tokens[key] = token.Content
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, templateFile))
	if err == nil {
		t.chat.sources = map[string]string{"default": string(text)}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) || absent(c["chat_template"]) {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	one, list := "", []struct{ Name, Template string }(nil)
	if json.Unmarshal(c["chat_template"], &one) == nil {
		t.chat.sources = map[string]string{"default": one}
		return nil
	}
	if err := json.Unmarshal(c["chat_template"], &list); err != nil {
		return fmt.Errorf("tokenizer_config.json: chat_template: %w", err)
	}
	t.chat.sources = make(map[string]string)
	for _, one := range list {
		t.chat.sources[one.Name] = one.Template
	}
	return nil
}

// ApplyChatTemplate returns the text of a conversation by the chat template of the model, which is
// in chat_template.jinja or tokenizer_config.json. With generationPrompt the text goes on to the
// point from which the model writes the next answer. Use [Tokenizer.EncodePlain] for the text: it
// has all special tokens. Use [Tokenizer.EncodeChat] for training.
//
// The text is the same as transformers' apply_chat_template returns.
func (t *Tokenizer) ApplyChatTemplate(c Chat, generationPrompt bool) (string, error) {
	text, err := t.chat.render(&c, c.Messages, generationPrompt)
	if err != nil {
		return "", fmt.Errorf("tokenizer: %w", err)
	}
	return unmarked.Replace(text), nil
}

// source returns the template for a conversation.
func (t *chatTemplate) source(c *Chat) (string, error) {
	if s, ok := t.sources["tool_use"]; ok && len(c.Tools) > 0 {
		return s, nil
	}
	if s, ok := t.sources["default"]; ok {
		return s, nil
	}
	if len(t.sources) > 0 {
		return "", fmt.Errorf("there are the chat templates %q and no default: write one of them to %s next to the tokenizer",
			slices.Sorted(maps.Keys(t.sources)), templateFile)
	}
	return "", fmt.Errorf("there is no chat template: this may be a base model, so copy %s from a model that was trained for chats", templateFile)
}

// compile returns the template for a conversation.
func (t *chatTemplate) compile(c *Chat) (*jinja.Template, error) {
	source, err := t.source(c)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if compiled, ok := t.compiled[source]; ok {
		return compiled, nil
	}
	if len(source) > maxSource {
		return nil, fmt.Errorf("the chat template has %d bytes, want at most %d", len(source), maxSource)
	}
	compiled, err := jinja.Compile(source)
	if err != nil {
		return nil, fmt.Errorf("the chat template is not supported: %w", err)
	}
	if t.compiled == nil {
		t.compiled = make(map[string]*jinja.Template)
	}
	t.compiled[source] = compiled
	return compiled, nil
}

// render returns the text of messages of a conversation, with marks around the blocks that the
// template says the model has generated.
func (t *chatTemplate) render(c *Chat, messages []Message, generationPrompt bool) (text string, err error) {
	template, err := t.compile(c)
	if err != nil {
		return "", err
	}
	if len(messages) == 0 {
		return "", errors.New("the conversation has no messages")
	}
	list := new(jinja.List)
	for i := range messages {
		v, err := messages[i].value()
		if err != nil {
			return "", fmt.Errorf("message %d: %w", i, err)
		}
		list.Items = append(list.Items, v)
	}
	values := map[string]any{"messages": list, "add_generation_prompt": generationPrompt, "tools": nil, "documents": nil}
	for key, token := range t.tokens {
		values[key] = token
	}
	if len(c.Tools) > 0 {
		tools := new(jinja.List)
		for i, tool := range c.Tools {
			v, err := jinja.Decode(tool)
			if err != nil {
				return "", fmt.Errorf("tool %d: %w", i, err)
			}
			tools.Items = append(tools.Items, v)
		}
		values["tools"] = tools
	}
	for key, text := range c.Kwargs {
		if values[key], err = jinja.Decode(text); err != nil {
			return "", fmt.Errorf("chat_template_kwargs: %s: %w", key, err)
		}
	}
	if text, err = run(template, values); err == nil {
		return lossy([]byte(text)), nil
	}
	if limit := (*jinja.LimitError)(nil); errors.As(err, &limit) {
		return "", fmt.Errorf("the chat template %w: it may be damaged, so take the template from another copy of the model", err)
	}
	return "", fmt.Errorf("the chat template refuses the conversation of %s: %w", roles(messages), err)
}

// run renders a template. A bad template must not end the program.
func run(t *jinja.Template, values map[string]any) (text string, err error) {
	defer caught.Panic(&err, "the chat template")
	return t.Render(values)
}

// roles lists the roles of the messages.
func roles(messages []Message) string {
	list := make([]string, len(messages))
	for i, m := range messages {
		list[i] = m.Role
	}
	return strings.Join(list, ", ")
}
