package hf

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp"
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
	Task    nn.Task    // nn.ClassifySequences, nn.ClassifyTokens or nn.EmbedSequences
	Labels  []string   // names of the classes, or of the numbers to predict
	Targets nn.Targets // of nn.ClassifySequences

	MeanPool  bool // nn.EmbedSequences has the mean of all tokens, not the first token
	Normalize bool // vectors of nn.EmbedSequences have length 1
}

// OpenWithHead is [Open] for an encoder, with or without a head, that gets a new head. The old head
// is not loaded. [fsdp.Wrap] draws the parameters of the new one, which Model.Drawn lists, by
// Config.Seed, and Load leaves them. Save writes a directory that Open reads.
func OpenWithHead(dir string, head Head, skip ...string) (*Model, error) {
	if err := head.check(); err != nil {
		return nil, fmt.Errorf("hf: %s: %w", dir, err)
	}
	return openAs(dir, &head, skip)
}

// check returns an error for a head that does not exist.
func (h *Head) check() error {
	unique := slices.Compact(slices.Sorted(slices.Values(h.Labels)))
	switch {
	case h.Task == nn.EmbedSequences && (len(h.Labels) > 0 || h.Targets != nn.OneClass):
		return fmt.Errorf("the new head has labels %q and targets %d, but nn.EmbedSequences has neither", h.Labels, h.Targets)
	case h.Task == nn.EmbedSequences:
	case h.Task != nn.ClassifySequences && h.Task != nn.ClassifyTokens:
		return fmt.Errorf("the new head has task %d, want nn.ClassifySequences, nn.ClassifyTokens or nn.EmbedSequences", h.Task)
	case h.MeanPool || h.Normalize:
		return errors.New("the new head has MeanPool or Normalize, but only nn.EmbedSequences has them")
	case len(unique) == 0 || len(unique) != len(h.Labels):
		return fmt.Errorf("the new head has labels %q, want names that differ", h.Labels)
	}
	return nil
}

// set sets the fields of an encoder that config.json does not have.
func (h *Head) set(model fsdp.Model) {
	switch m := model.(type) {
	case *nn.BERT:
		m.Classes, m.Targets, m.MeanPool, m.Normalize = len(h.Labels), h.Targets, h.MeanPool, h.Normalize
	case *nn.ModernBERT:
		m.Classes, m.Targets, m.Normalize = len(h.Labels), h.Targets, h.Normalize
		if h.Task == nn.EmbedSequences {
			m.MeanPool = h.MeanPool
		}
	}
}

// replaceHead chooses the architecture with the new head, and removes the keys of the old one.
func (m *Model) replaceHead(c *config) error {
	var kinds []string
	found := false
	for _, a := range architectures {
		if a.task == nil {
			continue
		}
		if kinds = append(kinds, a.kind); a.kind == m.arch.kind && *a.task == m.head.Task {
			m.arch, found = a, true
		}
	}
	if !found {
		return fmt.Errorf("a new head is only for encoders of model_type %s, not for %s", strings.Join(slices.Compact(kinds), ", "), m.arch.kind)
	}
	for _, key := range []string{"num_labels", "_num_labels", "problem_type", "id2label", "label2id"} {
		delete(c.keys, key)
	}
	return nil
}

// newHead begins the names, in no file, of parameters that are drawn.
const newHead = "new head: "

// pooler sets the pooler of an encoder by the tensors in the files, and lists the parameters that a
// new head must draw.
func (m *Model) pooler(weights *files) error {
	encoder, ok := m.Model.(*nn.BERT)
	if m.head != nil {
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

// draw sets Drawn to the parameters of the new head that the files lack. They keep their initial
// values.
func (m *Model) draw(has func(tensor string) bool) {
	if m.head.Task == nn.EmbedSequences {
		return
	}
	m.Drawn = []string{"head.weight", "head.bias"}
	names, own := m.arch.options(m.Model, m.prefix).Rename, m.arch.options(m.Model, "~").Rename
	draw := func(name string, keep bool) {
		if !keep || !has(names(name)) {
			m.Drawn = append(m.Drawn, name)
		}
	}
	_, modern := m.Model.(*nn.ModernBERT)
	switch {
	case modern: // all heads begin with the same layer, as in transformers
		draw("transform.fc.weight", true)
		draw("transform.norm.weight", true)
	case m.head.Task == nn.ClassifySequences: // the pooler belongs to the encoder if it has the encoder's prefix, as in BERT
		draw("pool.weight", strings.HasPrefix(own("pool.weight"), "~"))
		draw("pool.bias", strings.HasPrefix(own("pool.bias"), "~"))
	}
}

// oldHead reports whether a tensor is of a head that encoders have in files.
func oldHead(name string) bool {
	return slices.ContainsFunc([]string{"cls.", "lm_head.", "vocab_", "classifier.", "pre_classifier.", "pooler.", "decoder."}, func(prefix string) bool {
		return strings.HasPrefix(name, prefix)
	})
}
