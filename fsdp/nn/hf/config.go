package hf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"path"
	"reflect"
	"slices"
)

// A config is config.json during parsing. Every key is asked for once. err keeps the first error.
type config struct {
	within  string // path to the object: "rope_scaling.", or "" for the whole file
	skip    []string
	adapter bool // the file is adapter_config.json
	keys    map[string]json.RawMessage
	asked   map[string]bool
	ignored []string
	labels  []string // of classes
	err     error
}

// parseConfig decodes the object.
func parseConfig(text []byte) (*config, error) {
	c := &config{asked: make(map[string]bool)}
	if err := json.Unmarshal(text, &c.keys); err != nil {
		return nil, err
	}
	if c.keys == nil {
		return nil, fmt.Errorf("%.20s is not an object", text)
	}
	return c, nil
}

// fail records an error, if it is the first.
func (c *config) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

// has reports whether a key is present and not null. It counts as asked for.
func (c *config) has(key string) bool {
	c.asked[key] = true
	text, ok := c.keys[key]
	return ok && string(bytes.TrimSpace(text)) != "null"
}

// get returns the value of a key, or otherwise if it is missing or null.
func get[T any](c *config, key string, otherwise T) T {
	if !c.has(key) {
		return otherwise
	}
	var v T
	if err := json.Unmarshal(c.keys[key], &v); err != nil {
		c.fail("%s: %s is not of type %T", key, short(c.keys[key]), v)
		return otherwise
	}
	return v
}

// nested reads an object.
func (c *config) nested(key string, read func(c *config)) {
	if !c.has(key) {
		return
	}
	inner, err := parseConfig(c.keys[key])
	if err == nil {
		inner.within, inner.skip = c.within+key+".", c.skip
		read(inner)
		err = inner.end()
	}
	if err != nil {
		c.fail("%s.%w", key, err)
	}
}

// size returns a positive number. It must be present, unless otherwise > 0.
func (c *config) size(key string, otherwise int) int {
	n := get(c, key, otherwise)
	switch {
	case n > math.MaxInt32:
		c.fail("%s is %d, more than %d", key, n, math.MaxInt32)
	case n > 0:
	case c.has(key):
		c.fail("%s is %d, want a positive number", key, n)
	default:
		c.fail("%s is missing", key)
	}
	return n
}

// heads checks that a width divides into heads.
func (c *config) heads(widthKey string, width int, key string, n int) {
	if n > 0 && width%n != 0 {
		c.fail("%s %d is not a multiple of %s, %d", widthKey, width, key, n)
	}
}

// positive returns a positive number that may be missing.
func (c *config) positive(key string, otherwise float64) float64 {
	v := get(c, key, otherwise)
	if !(v > 0) {
		c.fail("%s is %v, want a positive number", key, v)
	}
	return v
}

// only checks a key whose only supported value is want. A missing key means want, too.
func only[T any](c *config, key string, want T) {
	if got := get(c, key, want); !reflect.DeepEqual(got, want) {
		c.fail("%s %s is not supported, only %v", key, short(c.keys[key]), want)
	}
}

// choose returns the meaning of a key's value.
func choose[T any](c *config, key, otherwise string, of map[string]T) T {
	name := get(c, key, otherwise)
	v, ok := of[name]
	if !ok {
		c.fail("%s %q is not supported, only %q", key, name, slices.Sorted(maps.Keys(of)))
	}
	return v
}

// ignore skips keys that do not change the model's computation.
func (c *config) ignore(keys ...string) {
	for _, key := range keys {
		c.asked[key] = true
	}
}

// training skips keys that change only training, and lists the keys that have an effect.
func (c *config) training(keys ...string) {
	for _, key := range keys {
		if c.has(key) && string(c.keys[key]) != "0" && string(c.keys[key]) != "0.0" && string(c.keys[key]) != "false" {
			c.ignored = append(c.ignored, fmt.Sprintf("%s %s", key, short(c.keys[key])))
		}
	}
}

// end returns the first error. A key that was not asked for is an error, too, unless its value is
// null or false, or the caller of Open skips it.
func (c *config) end() error {
	for _, key := range slices.Sorted(maps.Keys(c.keys)) {
		if c.asked[key] || !c.has(key) || string(c.keys[key]) == "false" || matches(c.skip, c.within+key) {
			continue
		}
		if c.adapter {
			c.fail("%s %s is not supported", key, short(c.keys[key]))
		}
		c.fail("%s %s is unknown, and may change the model: if it does not, skip it by hf.Open(dir, %q)",
			key, short(c.keys[key]), c.within+key)
	}
	return c.err
}

// matches reports whether a name matches one of the patterns.
func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return ok && err == nil // open has checked the patterns
	})
}

// short returns a value for a message.
func short(text json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, text) != nil || b.Len() > 80 {
		return fmt.Sprintf("%.80s…", text)
	}
	return b.String()
}

// common are keys that all kinds of models may have and that do not change a model's computation:
// its origin, special tokens, generation, the results of a pipeline, and how a program computes and
// saves memory.
var common = []string{
	"model_type", "architectures", "_name_or_path", "name_or_path", "_commit_hash", "_attn_implementation_autoset",
	"transformers_version", "torch_dtype", "dtype", "auto_map", "task_specific_params", "finetuning_task", "tokenizer_class",
	"use_cache", "output_past", "return_dict", "output_attentions", "output_hidden_states", "torchscript", "initializer_range",
	"bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "unk_token_id", "decoder_start_token_id", "prefix",
	"id2label", "label2id", "num_labels", "_num_labels", "transformers.js_config", "problem_type",
	"max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty", "temperature",
	"top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
	"bad_words_ids", "num_return_sequences", "output_scores", "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id",
	"remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens",
	"max_new_tokens", "cache_implementation", "num_logits_to_keep", "max_sequence_length",
	"attn_implementation", "_attn_implementation", "_flash_attn_2_enabled", "gradient_checkpointing",
	"model_name", "unsloth_fixed", "unsloth_version", "sentence_transformers", "sbert_ce_default_activation_function",
}
