package arch

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// hard are word orders that make a reader read a sentence twice: pronouns in place of nouns,
// clauses in place of nouns, and a preposition at the beginning of a sentence.
var hard = []*regexp.Regexp{
	regexp.MustCompile(`\b([Tt]hat|[Tt]hose) of\b`),
	regexp.MustCompile(`\b(as|than|for|in|with|from|by) (that|those)\b`),
	regexp.MustCompile(`\b[Ww]hat (is|are|was|were|has|have|had|it|they|the|its|a|this|others?|another|no|` +
		`travels|goes|comes|ranks|users|remains|can|cannot|may|must|will|does|do|counts|fails|stands|else)\b`),
	regexp.MustCompile(`(^|[.,:;(] ?)[Ww]ho\b|\b[Ww]hoever\b`),
	regexp.MustCompile(`\b[Bb]eside\b|\bso many\b|\b([Nn]obody|[Ss]omebody|[Aa]nybody)\b`),
	regexp.MustCompile(`(^|[.] )(Of|Where) [a-z]`),
}

// allowed are parts of sentences in which such an order is right: output of programs, names,
// messages of a protocol, and relative clauses.
var allowed = regexp.MustCompile(strings.Join([]string{
	`MB beside [0-9.]+ MB sent`, // printed by fsdp.Plan
	`[.(\[]Beside\b`, `\bBeside (compares|has|returns)`, `of Beside\b`, `option Beside\b`,
	`(client|server): who I am`, `an attacker in the middle, who`,
	`\b(for|with|by|from|in) that (rank|option|name|file|cluster|goroutine|one|iteration|order|step)\b`,
	`\bOf returns\b`, `\bthat of returns for\b`,
}, "|"))

const (
	fewWords  = 1000 // packages with fewer say too little to be counted
	hardPer1K = 1
)

// hardOrders counts the hard word orders of a text.
func hardOrders(text string) (n int) {
	text = strings.Join(strings.Fields(text), " ")
	if allowed.MatchString(text) {
		text = allowed.ReplaceAllString(text, "")
	}
	for _, r := range hard {
		n += len(r.FindAllString(text, -1))
	}
	return n
}

// TestProse counts hard word orders in the comments and printed texts of each package, and in each
// page. One for every 1,000 words is allowed.
func TestProse(t *testing.T) {
	words, orders, where := map[string]int{}, map[string]int{}, map[string][]string{}
	count := func(unit, at, text string) {
		words[unit] += len(strings.Fields(text))
		if n := hardOrders(text); n > 0 {
			orders[unit] += n
			where[unit] = append(where[unit], at)
		}
	}
	for _, f := range sources(t, code) {
		if f.generated {
			continue
		}
		for _, c := range f.ast.Comments {
			count(f.dir, f.at(c), c.Text())
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING && strings.Count(l.Value, " ") > 3 {
				count(f.dir, f.at(l), strings.Trim(l.Value, "`\""))
			}
			return true
		})
	}
	for name, text := range pages(t) {
		for part := range strings.SplitSeq(text, "\n\n") {
			count(name, name, part)
		}
	}
	for unit, n := range orders {
		if words[unit] >= fewWords && n*1000 > words[unit]*hardPer1K {
			t.Errorf("%s: %d hard word orders in %d words, at most 1 in 1,000: put the subject first and name things by nouns, at\n\t%s",
				unit, n, words[unit], strings.Join(slices.Compact(where[unit]), "\n\t"))
		}
	}
}

func TestHardOrders(t *testing.T) {
	for text, n := range map[string]int{
		"What is there already is an error of Wrap.":                  1,
		"Of parameters that ranks share it is that of the first.":     2,
		"It takes as many as nobody needs, whoever asks.":             2,
		"Wrap fails if the directory already contains hashes.":        0,
		"sent 3.1 MB beside 4.0 MB sent in a pass, see [Plan.Beside]": 0,
	} {
		require.Equal(t, n, hardOrders(text), text)
	}
}
