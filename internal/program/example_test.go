package program_test

import (
	"fmt"
	"os"

	"github.com/gofsdp/gofsdp/internal/program"
)

// A model of two layers, each sharded on its own, between an embedding and a head in a root group
// that is kept. The head is the loss.
func ExampleCompile() {
	m := &program.Model{
		Inputs: 1,
		Groups: []program.Group{{Name: "root", Hold: program.Keep}, {Name: "h.0"}, {Name: "h.1"}},
		Params: []program.Param{{Name: "wte", Group: 0}, {Name: "h.0.w", Group: 1}, {Name: "h.1.w", Group: 2}},
		Calls: []program.Call{
			{Name: "embed", In: []program.Ref{{Call: program.Batch}}, Params: []int{0}},
			{Name: "h.0", In: []program.Ref{{Call: 0}}, Params: []int{1}},
			{Name: "h.1", In: []program.Ref{{Call: 1}}, Params: []int{2}},
			{Name: "head", In: []program.Ref{{Call: 2}}, Params: []int{0}},
		},
		Results: []program.Ref{{Call: 3}},
	}
	p, err := program.Compile(m, program.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	p.Describe(os.Stdout)
	fmt.Println("verified:", program.Verify(p) == nil)
	// Output:
	// gather root
	// wait root
	// forward embed
	// gather h.0
	// wait h.0
	// forward h.0
	// free h.0
	// gather h.1
	// wait h.1
	// forward h.1
	// forward head
	// turn
	// backward head
	// backward h.1
	// free h.1
	// reduce h.1
	// gather h.0
	// wait h.0
	// backward h.0
	// free h.0
	// drain h.1
	// reduce h.0
	// backward embed
	// free root
	// drain h.0
	// reduce root
	// drain root
	// verified: true
}
