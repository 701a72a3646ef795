package hf

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// maxClasses bounds num_labels, which no tensor has checked yet.
const maxClasses = 1 << 20

// classNames returns the names of n classes that have no others, as in transformers.
func classNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint("LABEL_", i)
	}
	return names
}

// labelKeys returns the keys of config.json for classes.
func labelKeys(names []string) map[string]any {
	labels, ids := make(map[string]any), make(map[string]any)
	for i, name := range names {
		labels[strconv.Itoa(i)], ids[name] = name, i
	}
	return map[string]any{"id2label": labels, "label2id": ids}
}

// classes returns the names of the classes by id2label or, without it, num_labels.
func (c *config) classes() []string {
	n := c.size("num_labels", 2)
	if n > maxClasses {
		c.fail("num_labels is %d, want at most %d", n, maxClasses)
	}
	n = min(max(n, 1), maxClasses)
	c.labels = classNames(n)
	if !c.has("id2label") {
		return c.labels
	}
	labels := get(c, "id2label", map[string]string{})
	if c.has("num_labels") && len(labels) != n {
		c.fail("num_labels is %d, but id2label has %d classes", n, len(labels))
	}
	c.labels = make([]string, len(labels))
	for i := range c.labels {
		name, ok := labels[strconv.Itoa(i)]
		c.labels[i] = name
		if !ok {
			c.fail("id2label has %d classes, but no class %d", len(labels), i)
		}
	}
	if len(labels) == 0 {
		c.fail("id2label has no classes")
	}
	return c.labels
}

// A Head is a new head for the encoder in a directory.
type Head struct {
	Task    nn.Task    // nn.ClassifySequences or nn.ClassifyTokens
	Labels  []string   // names of the classes, or of the numbers to predict
	Targets nn.Targets // of nn.ClassifySequences
}

// OpenWithHead is [Open] for an encoder, with or without a head, that gets a new head. The old head
// is not loaded. [fsdp.Wrap] draws the parameters of the new one, which Model.Drawn lists, by
// Config.Seed, and Load leaves them. Save writes a directory that Open reads.
func OpenWithHead(dir string, head Head, skip ...string) (*Model, error) {
	return openAs(dir, &head, skip)
}

// setHead replaces the head of the encoder.
func (m *Model) setHead(head *Head) error {
	encoder, ok := m.Model.(*nn.BERT)
	if !ok {
		return fmt.Errorf("a new head is only for encoders of model_type bert, roberta and distilbert, not for %s", m.arch.kind)
	}
	unique := slices.Compact(slices.Sorted(slices.Values(head.Labels)))
	switch {
	case head.Task != nn.ClassifySequences && head.Task != nn.ClassifyTokens:
		return fmt.Errorf("the new head has task %d, want nn.ClassifySequences or nn.ClassifyTokens", head.Task)
	case len(unique) == 0 || len(unique) != len(head.Labels):
		return fmt.Errorf("the new head has labels %q, want names that differ", head.Labels)
	}
	encoder.Task, encoder.Classes, encoder.Targets, encoder.NoPooler = head.Task, len(head.Labels), head.Targets, false
	encoder.PoolReLU = head.Task == nn.ClassifySequences && encoder.Kinds < 0
	as, was, err := describe(m.Model)
	if err != nil {
		return err
	}
	for _, key := range []string{"num_labels", "_num_labels", "problem_type", "id2label", "label2id"} {
		delete(m.keys, key)
	}
	m.keys["architectures"] = []string{as.class}
	if problem, ok := was["problem_type"]; ok {
		m.keys["problem_type"] = problem
	}
	m.arch, m.as, m.was, m.Labels, m.labels = as, as, was, slices.Clone(head.Labels), nil
	return nil
}

// newHead begins the names, in no file, of parameters that are drawn.
const newHead = "new head: "

// pooler sets the pooler of an encoder by the tensors in the files, and lists the parameters that a
// new head must draw.
func (m *Model) pooler(weights *files, drawn bool) error {
	encoder, ok := m.Model.(*nn.BERT)
	if drawn {
		m.draw(func(tensor string) bool { return weights.of[tensor] != "" })
	}
	if !ok || encoder.Task != nn.Encode || encoder.NoPooler || weights.of[m.prefix+"pooler.dense.weight"] != "" {
		return nil
	}
	encoder.NoPooler = true // config.json does not say
	var err error
	m.as, m.was, err = describe(m.Model)
	return err
}

// renameDrawn gives drawn parameters names that no file has.
func (m *Model) renameDrawn(rename func(string) string) func(string) string {
	return func(name string) string {
		if slices.Contains(m.Drawn, name) {
			return newHead + name
		}
		return rename(name)
	}
}

// setLabels sets the keys of labels, if they have changed. now is the keys of the model.
func (m *Model) setLabels(keys, now map[string]any) error {
	if slices.Equal(m.Labels, m.labels) {
		return nil
	}
	if classes, _ := now["id2label"].(map[string]any); len(classes) != len(m.Labels) {
		return fmt.Errorf("Model.Labels has %d names, but the model has %d classes", len(m.Labels), len(classes))
	}
	maps.Copy(keys, labelKeys(m.Labels))
	return nil
}

// draw lists the parameters that the new head lacks in the files.
func (m *Model) draw(has func(tensor string) bool) {
	m.Drawn = []string{"head.weight", "head.bias"}
	if m.Model.(*nn.BERT).Task != nn.ClassifySequences {
		return
	}
	names := m.arch.options(m.Model, m.prefix).Rename
	for _, name := range []string{"pool.weight", "pool.bias"} {
		// The pooler belongs to the encoder if it has the encoder's prefix, as in BERT.
		if own := strings.HasPrefix(m.arch.options(m.Model, "~").Rename(name), "~"); !own || !has(names(name)) {
			m.Drawn = append(m.Drawn, name)
		}
	}
}

// oldHead reports whether a tensor is of a head that encoders have in files.
func oldHead(name string) bool {
	return slices.ContainsFunc([]string{"cls.", "lm_head.", "vocab_", "classifier.", "pre_classifier.", "pooler."}, func(prefix string) bool {
		return strings.HasPrefix(name, prefix)
	})
}
