package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
)

// about is what fsdp.Save writes into a manifest beside the tensors. Other writers may leave any of it out.
type about struct {
	Seed           *uint64                      `json:"seed"`
	Forwards       *int                         `json:"forwards"`
	OptimizerSteps *int                         `json:"optimizer_steps"`
	Extra          map[string]json.RawMessage   `json:"extra"`
	RankExtra      []map[string]json.RawMessage `json:"rank_extra"` // by rank
	Config         []string                     `json:"config"`     // one fact a line

	buffers map[string]bool // names of the tensors that are buffers, from Config
}

// parameterFact matches what Config says of a parameter or buffer of the model: its name and what it is.
var parameterFact = regexp.MustCompile(`^parameter (.+) \[[\d ]*\]: ([a-z ]+), in unit `)

// readAbout reads what a manifest says about the training.
func readAbout(m *checkpoint.Manifest) (*about, error) {
	a := &about{buffers: make(map[string]bool)}
	text, err := json.Marshal(m.Meta)
	if err == nil {
		err = json.Unmarshal(text, a)
	}
	if err != nil {
		return nil, fmt.Errorf("what the manifest says about the training: %w", err)
	}
	for _, line := range a.Config {
		if p := parameterFact.FindStringSubmatch(line); p != nil && strings.Contains(p[2], "buffers") {
			a.buffers[p[1]] = true
		}
	}
	return a, nil
}

// isBuffer tells whether a tensor is a buffer, of which every rank has its own. What else ranks have of their own are the
// parameters of units with process groups of theirs: experts.
func (a *about) isBuffer(k checkpoint.Key) bool {
	return k.Owner != checkpoint.Shared && k.Entry == "" && a.buffers[k.Param]
}
