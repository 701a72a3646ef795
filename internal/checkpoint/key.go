package checkpoint

import (
	"cmp"
	"strconv"
)

// Shared is the Owner of a tensor that all ranks share: each holds a part of it.
const Shared = -1

// Key names a tensor of the state of a training.
type Key struct {
	Param string `json:"param"`           // full name of the parameter or buffer, such as "blocks.0.fc.weight"
	Entry string `json:"entry,omitempty"` // "" for its value, or the optimizer's entry for it, such as "exp_avg"
	Owner int    `json:"owner"`           // Shared, or the rank whose own tensor it is: other ranks have others of the name
}

// Name returns the name of the tensor in files: "wte.weight", "exp_avg:wte.weight", "experts.up@3",
// "exp_avg:experts.up@3".
func (k Key) Name() string {
	name := k.Param
	if k.Entry != "" {
		name = k.Entry + ":" + name
	}
	if k.Owner != Shared {
		name += "@" + strconv.Itoa(k.Owner)
	}
	return name
}

// Compare orders keys by parameter, then entry, then owner: a value comes before its optimizer
// entries.
func (k Key) Compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Param, other.Param), cmp.Compare(k.Entry, other.Entry), cmp.Compare(k.Owner, other.Owner))
}
