package jinja_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/fsdp/nn/hf/tokenizer/internal/jinja"
)

// render renders a template for two messages.
func render(t require.TestingT, template string) (string, error) {
	compiled, err := jinja.Compile(template)
	if err != nil {
		return "", err
	}
	messages, err := jinja.Decode([]byte(`[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]`))
	require.NoError(t, err)
	return compiled.Render(map[string]any{"messages": messages, "add_generation_prompt": false, "tools": nil, "documents": nil})
}

// A golden is the text that Python's Jinja makes of a template, or nil if it refuses the template.
type golden struct {
	Template string
	Text     *string
}

func cases(t require.TestingT) (list []golden) {
	text, err := os.ReadFile("testdata/jinja.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &list))
	return list
}

// TestPython compares texts with those of Python. Templates that it refuses are refused here.
func TestPython(t *testing.T) {
	for _, c := range cases(t) {
		t.Run(c.Template, func(t *testing.T) {
			got, err := render(t, c.Template)
			if c.Text == nil {
				require.Error(t, err, "%q", got)
				return
			}
			require.NoError(t, err)
			require.Equal(t, *c.Text, got)
		})
	}
}

// FuzzRender renders any template: text, or an error.
func FuzzRender(f *testing.F) {
	for _, c := range cases(f) {
		f.Add(c.Template)
	}
	f.Fuzz(func(t *testing.T, template string) {
		_, _ = render(t, template) // either is right
	})
}
