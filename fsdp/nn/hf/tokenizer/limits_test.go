package tokenizer_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/fsdp/nn/hf/tokenizer"
)

// rendered returns the text of a short conversation by a template.
func rendered(t *testing.T, template string) (string, error) {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS("testdata/qwen2")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(template), 0o600))
	tok, err := tokenizer.Open(dir)
	require.NoError(t, err)
	return tok.ApplyChatTemplate(tokenizer.Chat{Messages: []tokenizer.Message{{Role: "user", Content: "a"}, {Role: "assistant", Content: "b"}}}, false)
}

// TestTemplateLimits: templates that recurse, repeat or grow without end are errors within seconds,
// and so are ways around the limits.
func TestTemplateLimits(t *testing.T) {
	const steps, large = "takes more than 1048576 steps in loops, macros and ranges", "has a value of more than 16777216 bytes"
	for _, c := range []struct{ template, want string }{
		{`{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}`, "has more than 100 macros that call one another"},
		{`{% macro m() %}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}`, "has more than 100 macros that call one another"},
		{`{% macro m(n) %}{% if n > 0 %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}`, steps},
		{`{{ range(1000000000) | length }}`, steps},
		{`{{ range(9223372036854775800, 9223372036854775807, 5) | length }}{{ range(-1000000000000, 0) }}`, steps},
		{`{% for a in range(2000) %}{% for b in range(2000) %}{% endfor %}{% endfor %}`, steps},
		{`{% for a in range(100) %}{% for b in range(100) %}` + strings.Repeat("text ", 1000) + `{% endfor %}{% endfor %}`, "writes more than 16777216 bytes"},
		{`{{ 'x' * 100000000000 }}`, "the operator * is supported only between a text in quotes and a number below 1000"},
		{`{{ 'x' * 100 * 100 }}`, "the operator * is supported only between a text in quotes and a number below 1000"},
		{`{% set n = namespace(s='text') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}`, large},
		{`{% set n = namespace(s='text') %}{% for i in range(60) %}{% set n.s = n.s) ~ (n.s ~ n.s %}{% endfor %}`, "a bracket ) closes none"},
		{`{% macro m(s) %}{{ m(s ~ s) }}{% endmacro %}{{ m('text') }}`, large},
		{`{% set s = 'text' %}` + strings.Repeat(`{% for s in [s ~ s] %}`, 40) + strings.Repeat(`{% endfor %}`, 40), large},
		{`{% set s = 'text' %}` + strings.Repeat(`{% set s = [s, s, s, s, s, s, s, s] %}`, 20) + `{{ s }}`, large},
		{`{{ '` + strings.Repeat("a", 50000) + `'.replace('a', '` + strings.Repeat("a", 50000) + `') }}`, "a text has more than 16777216 bytes"},
		{`{{ range(50000) | join('` + strings.Repeat("a", 50000) + `') }}`, "a text has more than 16777216 bytes"},
		{`{{ '"'` + strings.Repeat(`|tojson`, 40) + `}}`, "a text has more than 16777216 bytes"},
		{`{{ 'a\nb' | indent(1000000000000) }}`, "indent: the width is 1000000000000, want 0 to 100"},
		{`{% set l = [] %}{% set _ = l.append(l) %}{{ l }}`, "the method append is not supported"},
		{`{% set n = namespace() %}{% set n.n = [n] %}{{ n }}`, "puts a namespace into another value"},
		{`{% set d = {} %}{% set d.d = d %}{{ d }}`, "only members of a namespace can be set"},
		{`{% set s = ` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + ` %}`, "has a value with more than 200 lists and objects in one another"},
		{`{{ '' ` + strings.Repeat("~ messages", 51) + `}}`, "a tag has more than 50 operators + and ~"},
		{`{{ __filter_replace('a', '', 'b') }}`, "the name __filter_replace is reserved"},
		{`{% set gofsdp_show = 1 %}`, "the name gofsdp_show is reserved"},
		{`{{ messages.app§end(1) }}`, `the character '§' is unknown`},
		{strings.Repeat("text", 1<<16), "the chat template has 262144 bytes, want at most 131072"},
	} {
		begin := time.Now()
		_, err := rendered(t, c.template)
		require.ErrorContains(t, err, c.want, "%.200s", c.template)
		require.Less(t, time.Since(begin), 30*time.Second)
	}
}

// TestTemplateValues compares the texts of values with those that Jinja and Python's json write.
func TestTemplateValues(t *testing.T) {
	for template, want := range map[string]string{
		`{{ 100.0 }} {{ 1234567.5 }} {{ 0.00001 }} {{ 0.1 }} {{ 10000000000000000.0 }}`:                                   "100.0 1234567.5 1e-05 0.1 1e+16",
		`{{ [1.0, 2000000.0, none, true, 'é<&\\u2028\n"'] | tojson }}`:                                                    `[1.0, 2000000.0, null, true, "é<&\\u2028\n\""]`,
		`{{ {'b': 1.0, 'a': [], 'c': {'d': {}}} | tojson(indent=2) }}`:                                                    "{\n  \"b\": 1.0,\n  \"a\": [],\n  \"c\": {\n    \"d\": {}\n  }\n}",
		`{{ {'b': 1.5, 'a': [1, 2]} | tojson(sort_keys=true, separators=(',', ':'), ensure_ascii=false) }}`:               `{"a":[1,2],"b":1.5}`,
		`{{ (messages[0]) | tojson(indent=1) }}`:                                                                          "{\n \"role\": \"user\",\n \"content\": \"a\"\n}",
		`{{ '=' * 3 }} {{ range(5, 0, -2) | join(',') }} {{ messages | join('/', attribute='role') }} {{ 2.0 | string }}`: "=== 5,3,1 user/assistant 2.0",
		`{{ 'a\nb' | indent(2) }} {{ 'aaa'.replace('a', 'b', 2).strip() }} {{ 'aaa' | replace('a', 'c') | upper }}`:       "a\n  b bba CCC",
	} {
		text, err := rendered(t, template)
		require.NoError(t, err, template)
		require.Equal(t, want, text, template)
	}
	for template, want := range map[string]string{
		`{% raw %}{{ a }}{% endraw %}`:               "the statement raw is not supported",
		`{{ dict(a=1, b=2) | tojson }}`:              "dict: only one member with a name is supported: write {…}",
		`{{ '{:.2f}'.format(1) }}`:                   "the method format is not supported",
		`{{ 'é' | tojson(ensure_ascii=true) }}`:      "tojson: ensure_ascii=True is not supported",
		`{{ messages[0].nothing | tojson }}`:         "tojson: Undefined has no JSON",
		`{{ range('a') }}`:                           "range: a is not an integer",
		`{% set a = 1, 2 %}`:                         "only members of a namespace can be set, and to one value",
		`{{ namespace({'a': 1}) }}{{ messages[0] }}`: "namespace: only arguments with names are supported",
	} {
		_, err := rendered(t, template)
		require.ErrorContains(t, err, want, template)
	}
}
