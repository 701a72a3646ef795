package tokenizer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// parse makes a tokenizer from tokenizer.json.
func parse(text []byte) (*Tokenizer, error) {
	var f struct {
		Version       string          `json:"version"`
		Truncation    json.RawMessage `json:"truncation"` // what programs have set last, and set again
		Padding       json.RawMessage `json:"padding"`
		AddedTokens   []*added        `json:"added_tokens"`
		Normalizer    json.RawMessage `json:"normalizer"`
		PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
		Model         json.RawMessage `json:"model"`
		PostProcessor json.RawMessage `json:"post_processor"`
		Decoder       json.RawMessage `json:"decoder"`
	}
	if err := strict(text, &f); err != nil {
		return nil, err
	}
	t := newTokenizer()
	var err error
	at := func(part string, e error) {
		if err == nil && e != nil {
			err = fmt.Errorf("%s: %w", part, e)
		}
	}
	var e error
	t.normalize, e = normalizer(f.Normalizer)
	at("normalizer", e)
	t.split, e = splitter(f.PreTokenizer)
	at("pre_tokenizer", e)
	t.model, e = parseModel(f.Model)
	at("model", e)
	t.decode, e = decoder(f.Decoder)
	at("decoder", e)
	at("post_processor", t.template(f.PostProcessor))
	if err != nil {
		return nil, err
	}
	return t, t.add(t.model.all(), f.AddedTokens)
}

func newTokenizer() *Tokenizer {
	return &Tokenizer{BOS: -1, EOS: -1, Pad: -1, Unknown: -1,
		ids: make(map[string]int), tokens: make(map[int]string), special: make(map[int]bool)}
}

// add adds the tokens of the model, and the tokens that are cut out of texts.
func (t *Tokenizer) add(names vocabulary, tokens []*added) error {
	maps.Copy(t.ids, names)
	for token, id := range names {
		if id < 0 || id > 1<<30 {
			return fmt.Errorf("token %q has number %d", token, id)
		}
		t.tokens[id] = token
	}
	for _, a := range tokens {
		if a == nil || a.Content == "" || a.ID < 0 || a.ID > 1<<30 {
			return fmt.Errorf("added_tokens: %+v is not a token", a)
		}
		t.ids[a.Content], t.tokens[a.ID] = a.ID, a.Content
		if a.Special {
			t.special[a.ID] = true
		}
		if !a.Normalized {
			t.raw = append(t.raw, a)
			continue
		}
		normal := *a
		if normal.Content = t.normalize(a.Content); normal.Content != "" {
			t.normal = append(t.normal, &normal)
		}
	}
	longer := func(a, b *added) int { return cmp.Compare(len(b.Content), len(a.Content)) }
	slices.SortStableFunc(t.raw, longer)
	slices.SortStableFunc(t.normal, longer)
	for id := range t.tokens {
		t.Size = max(t.Size, id+1)
	}
	return nil
}

// strict decodes JSON without fields that v lacks.
func strict(text []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

// absent reports whether a part is null or missing.
func absent(text json.RawMessage) bool { return len(text) == 0 || string(text) == "null" }

// kindOf returns the type of a part.
func kindOf(text json.RawMessage) (string, error) {
	var k struct {
		Type string `json:"type"`
	}
	err := json.Unmarshal(text, &k)
	return k.Type, err
}

// field is the type in structs that are decoded. It has been checked already.
type field struct {
	Type string `json:"type"`
}

func unsupported(kind string) error { return fmt.Errorf("type %q is not supported", kind) }

// template parses the tokens around a text.
func (t *Tokenizer) template(text json.RawMessage) error {
	if absent(text) {
		return nil
	}
	kind, err := kindOf(text)
	if err != nil {
		return err
	}
	switch kind {
	case "ByteLevel": // about offsets
		return nil
	case "Sequence":
		var s struct{ Processors []json.RawMessage }
		if err := json.Unmarshal(text, &s); err != nil {
			return err
		}
		for _, p := range s.Processors {
			if err := t.template(p); err != nil {
				return err
			}
		}
		return nil
	case "BertProcessing", "RobertaProcessing":
		var b struct{ Sep, Cls []any }
		if err := json.Unmarshal(text, &b); err != nil {
			return err
		}
		cls, err1 := second(b.Cls)
		sep, err2 := second(b.Sep)
		t.before, t.after = append([]int{cls}, t.before...), append(t.after, sep)
		return errors.Join(err1, err2)
	case "TemplateProcessing":
		return t.single(text)
	}
	return unsupported(kind)
}

// second returns the number of ["[CLS]", 101].
func second(pair []any) (int, error) {
	if len(pair) == 2 {
		if id, ok := pair[1].(float64); ok && id >= 0 && id < 1<<30 {
			return int(id), nil
		}
	}
	return 0, fmt.Errorf("%v is not a token and its number", pair)
}

// single parses the template of one text.
func (t *Tokenizer) single(text json.RawMessage) error {
	var p struct {
		Single []struct {
			SpecialToken *struct{ ID string }
			Sequence     *struct{ ID string }
		}
		SpecialTokens map[string]struct{ IDs []int } `json:"special_tokens"`
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return err
	}
	var around [2][]int
	side := 0
	for _, s := range p.Single {
		switch {
		case s.Sequence != nil && side == 0:
			side = 1
		case s.SpecialToken != nil && p.SpecialTokens[s.SpecialToken.ID].IDs != nil:
			around[side] = append(around[side], p.SpecialTokens[s.SpecialToken.ID].IDs...)
		default:
			return fmt.Errorf("template %+v is not supported", p.Single)
		}
	}
	t.before, t.after = append(around[0], t.before...), append(t.after, around[1]...)
	return nil
}
