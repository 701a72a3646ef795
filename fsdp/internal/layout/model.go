package layout

import (
	"fmt"

	"github.com/gofsdp/gofsdp/internal/program"
	"github.com/gofsdp/gofsdp/shard"
)

// A Model is the result of a trace. All layouts of a model share it.
type Model struct {
	Params []Param
	Index  map[string]int   // into Params, by name
	Paths  map[string]*Path // paths through the model, by program; Forward is ""
}

// A Param is a parameter or a buffer, which is not trained and kept by every rank separately.
type Param struct {
	shard.Param
	Buffer bool
}

// A Path is one path through the model: its Forward, or another of its programs.
type Path struct {
	Inputs     int      // batch tensors
	InputNames []string // nil if the model does not name them
	Calls      []Call
	Results    []program.Ref // the first is the loss in training

	Optional   []int    // inputs that a batch may lack
	Conditions int      // of batches
	Choices    []Choice // values that may be absent, or have another in their place
}

// A Call is one use of a module.
type Call struct {
	Name   string
	Module int // index of the call in Forward that has brought the module
	In     []program.Ref
	Params []int // indices into Model.Params, as the module lists them
}

// Input names batch tensor i for messages.
func (p *Path) Input(i int) string {
	if i < len(p.InputNames) {
		return fmt.Sprintf("batch tensor %d (%s)", i, p.InputNames[i])
	}
	return fmt.Sprintf("batch tensor %d", i)
}
