package hf

import (
	"regexp"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// rules map parameters to their names in transformers.
type rules []rule

type rule struct {
	here  *regexp.Regexp
	there string
}

// newRules makes rules of pairs: a regular expression of names here, and the name in transformers,
// or several with "|" between them if the parameter is joined from these. A "~" stands for the
// prefix of files that have a head. The first rule that matches counts.
func newRules(pairs ...string) (list rules) {
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, rule{regexp.MustCompile("^" + pairs[i] + "$"), pairs[i+1]})
	}
	return list
}

// names returns the names of a parameter in transformers.
func (list rules) names(prefix, name string) []string {
	for _, r := range list {
		if r.here.MatchString(name) {
			there := strings.ReplaceAll(r.here.ReplaceAllString(name, r.there), "~", prefix)
			return strings.Split(there, "|")
		}
	}
	return []string{name}
}

// sizes are the numbers of rows of joined parts.
type sizes struct {
	q, kv  int // of the layers of queries, and of keys and values
	hidden int // of gate and up
}

// options returns the options that follow the rules.
func (list rules) options(prefix string, s sizes) *fsdp.ExportOptions {
	return &fsdp.ExportOptions{
		Rename: func(name string) string { return list.names(prefix, name)[0] },
		Concat: func(name string) []fsdp.Part {
			names := list.names(prefix, name)
			if len(names) == 1 || nn.IsAdapter(name) {
				return nil
			}
			rows := []int{s.hidden, s.hidden}
			if len(names) == 3 {
				rows = []int{s.q, s.kv, s.kv}
			}
			var parts []fsdp.Part
			for i, name := range names {
				parts = append(parts, fsdp.Part{Name: name, Rows: rows[i]})
			}
			return parts
		},
	}
}

// headWeight is the tensor of an untied head.
const headWeight = "lm_head.weight"

// tied returns the copies in a file of a model whose head is the embedding.
func tied(is bool, embedding string) map[string]string {
	if !is {
		return map[string]string{}
	}
	return map[string]string{headWeight: embedding}
}
