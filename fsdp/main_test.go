package fsdp_test

import (
	"testing"

	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
)

func TestMain(m *testing.M) {
	kit.Main(m, map[string]kit.Need{
		"Example_muon":        kit.Processor,
		"ExamplePlanner_Fits": kit.Processor,
		"ExamplePlanner_Tune": kit.Processor,
		"ExampleStrategy":     kit.SecondCopy,
	})
}
