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
	const deep, steps, large = "has a value with more than 200 lists and objects in one another", "takes more than 1048576 steps in loops, macros and ranges", "has a value of more than 16777216 bytes"
	for _, c := range []struct{ template, want string }{
		{`{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}`, "has more than 100 macros that call one another"},
		{`{% macro m() %}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}`, "has more than 100 macros that call one another"},
		{`{% macro m(n) %}{% if n > 0 %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}`, steps},
		{`{{ range(1000000000) | length }}`, steps},
		{`{{ range(9223372036854775800, 9223372036854775807, 5) | length }}{{ range(-1000000000000, 0) }}`, steps},
		{`{% for a in range(2000) %}{% for b in range(2000) %}{% endfor %}{% endfor %}`, steps},
		{`{% for a in range(100) %}{% for b in range(100) %}` + strings.Repeat("text ", 1000) + `{% endfor %}{% endfor %}`, "writes more than 16777216 bytes"},
		{`{{ 'x' * 100000000000 }}`, large},
		{`{{ ['x'] * 100000000000 }}`, large},
		{`{% for i in range(100000) %}{% set s = 'x' * 100000 %}{% endfor %}`, "makes values of more than 268435456 bytes"},
		{`{% for i in range(100000) %}{% set s = '%s' % ('x' * 10000) %}{% endfor %}`, "makes values of more than 268435456 bytes"},
		{`{% set n = namespace(s='text') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}`, large},
		{`{% set n = namespace(s='text') %}{% for i in range(60) %}{% set n.s = n.s) ~ (n.s ~ n.s %}{% endfor %}`, `at ")": want the end of the tag`},
		{`{% macro m(s) %}{{ m(s ~ s) }}{% endmacro %}{{ m('text') }}`, large},
		{`{% set s = 'text' %}` + strings.Repeat(`{% for s in [s ~ s] %}`, 40) + strings.Repeat(`{% endfor %}`, 40), large},
		{`{% set s = 'text' %}` + strings.Repeat(`{% set s = [s, s, s, s, s, s, s, s] %}`, 20) + `{{ s }}`, large},
		{`{{ '` + strings.Repeat("a", 50000) + `'.replace('a', '` + strings.Repeat("a", 50000) + `') }}`, large},
		{`{{ range(50000) | join('` + strings.Repeat("a", 50000) + `') }}`, large},
		{`{{ '"'` + strings.Repeat(`|tojson`, 40) + `}}`, large},
		{`{{ 'a\nb' | indent(1000000000000) }}`, "indent: the width is 1000000000000, want 0 to 100"},
		{`{% set l = [] %}{% set _ = l.append(l) %}{{ l }}`, "the method append is not supported"},
		{`{% set n = namespace() %}{% set n.n = [n] %}{{ n.n }}`, "an object has no text"},
		{`{% set n = namespace() %}{% set n.n = [n] %}{{ n.n == [[n]] or n.n | tojson }}`, "an object has no JSON"},
		{`{% set d = {} %}{% set d.d = d %}{{ d }}`, "only members of a namespace can be set"},
		{`{% set s = ` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + ` %}`, "more than 200 statements and expressions in one another"},
		{strings.Repeat(`{% if true %}`, 1000), "more than 200 statements and expressions in one another"},
		{`{% set n = namespace(a=[]) %}{% for i in range(1000) %}{% set n.a = [n.a] %}{% endfor %}{{ n.a }}`, deep},
		{`{% set n = namespace(a=[], b=[]) %}{% for i in range(1000) %}{% set n.a = [n.a] %}{% set n.b = [n.b] %}{% endfor %}{{ n.a == n.b }}`, deep},
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
		`{% for x in [1] recursive %}{% endfor %}`:   `{% for … recursive %} is not supported`,
		`{% include 'x' %}`:                          `the statement include is not supported`,
		`{{ 'a b' | truncate(2) }}`:                  `the filter truncate is not supported`,
		`{{ 'a' is filter }}`:                        `the test filter is not supported`,
		`{{ 9223372036854775807 + 1 }}`:              `9223372036854775807 + 1 is too large`,
		`{{ '\N{DASH}' }}`:                           `the escape \N is not supported`,
		`{{ 'a'.swapcase() }}`:                       `the method swapcase is not supported`,
		`{{ '{:.2f}'.format(1) }}`:                   "the method format is not supported",
		`{{ 'é' | tojson(ensure_ascii=true) }}`:      "tojson: ensure_ascii=True is not supported",
		`{{ messages[0].nothing | tojson }}`:         "tojson: nothing, which is undefined, has no JSON",
		`{{ range('a') }}`:                           `range: the text "a" is not an integer`,
		`{{ namespace({'a': 1}) }}{{ messages[0] }}`: "namespace: only arguments with names are supported",
	} {
		_, err := rendered(t, template)
		require.ErrorContains(t, err, want, template)
	}
}
