package state

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// A state must fit the model and its optimizer. The rules are the same for every state: a
// checkpoint for Load, a file for Import, the full state of an optimizer for LoadOptimStateDict.
//
//	names         are the state's: the model's after Rename, "exp_avg:wte.weight" for an
//	              entry of an optimizer, "experts.up@2" if ranks differ
//	"optimizer"   is the number of an optimizer's steps. It is missing if the state has none,
//	              and there is an entry or AllowMissing does not accept it
//	AllowMissing  is asked for the name, and for the name without the rank: an accepted tensor
//	              may be missing and keeps its value. A tensor without elements may be missing
//	AllowExtra    is asked likewise: an accepted tensor is ignored. It is not asked about state
//	              of an optimizer if none is given, nor about buffers of ranks that are gone
//	frozen        parameters that a checkpoint lacks (TrainedOnly) are frozen, with the values
//	              of the time of Save; AllowMissing accepts any
//	kinds         of optimizers are equal, as far as they are known, if entries pass
//	entries       of one parameter are present together or not at all, despite AllowMissing
//	shapes        are equal except for dimensions of 1, after Transpose
//	types         are floats, of any size
//
// Every mismatch is found before anything changes. All ranks compare the same lists, so they get
// the same result if their options are the same. If the options differ, one error is the error of
// all ranks.

// stepsName is the name of an optimizer's number of steps. Plain SGD has it too, although it keeps
// no tensors.
const stepsName = "optimizer"

// A found is a tensor that was found in a file, a checkpoint or a full state.
type found struct {
	checkpoint.Key // its name there; in a file, Param is the whole name
	Shape          []int
	DType          safetensors.DType
	Steps          int    // updates of an optimizer's entry, -1 if unknown
	idle           bool   // no one expects that it is used
	lacked         bool   // a checkpoint of trained parameters describes it, and does not have it
	sum            uint32 // of a lacked one, see BaseTensor
}

// A matching compares the wanted tensors with the existing ones.
type matching struct {
	options *Options
	naming  *naming
	compute comm.DType
	key     func(t *Tensor) checkpoint.Key // the name there of a wanted tensor
	have    []found                        // in the order of the state
	counted bool                           // the number of an optimizer's steps is known
	frozen  map[checkpoint.Key]uint32      // checksums of the model's frozen parameters, as far as the state describes any

	index    map[checkpoint.Key]int // in have
	used     []bool                 // by index in have
	mismatch Mismatch
}

// match finds the tensors of a list, the tensors of one parameter together, and of an optimizer
// unless its state is not wanted. others are parameters whose optimizers are of another kind, which
// is an error unless no entry passes between them and the options accept that. It returns the
// indices of the tensors in have, or -1, or a *Mismatch.
func (m *matching) match(where string, list []Tensor, optimizer bool, others []other) (at []int, err error) {
	m.mismatch.Where = where
	m.used, m.index = make([]bool, len(m.have)), make(map[checkpoint.Key]int, len(m.have))
	for i := range m.have {
		m.index[m.have[i].Key] = i
	}
	at = make([]int, len(list))
	passed := make(map[int]bool) // parameters with entries in have
	err = ranks.Guarded("an option", func() error {
		for i := 0; i < len(list); {
			n := 1 // tensors that belong together: a value, or all entries that an optimizer keeps for it
			for list[i].Entry != "" && i+n < len(list) && list[i+n].Entry != "" && list[i+n].Index == list[i].Index && list[i+n].Owner == list[i].Owner {
				n++
			}
			m.want(list[i:i+n], at[i:i+n])
			if list[i].Entry != "" && slices.Max(at[i:i+n]) >= 0 {
				passed[list[i].Index] = true
			}
			i += n
		}
		if optimizer && !m.counted && (len(passed) > 0 || !allows(m.options.AllowMissing, stepsName)) {
			m.mismatch.Missing = append(m.mismatch.Missing, stepsName)
		}
		for i := range m.have {
			if h := &m.have[i]; !m.used[i] && !h.idle && !allows(m.options.AllowExtra, h.Name()) {
				m.mismatch.Extra = append(m.mismatch.Extra, h.Name())
			}
		}
		return nil
	})
	var kinds tally
	for _, o := range others {
		if passed[o.index] || m.mismatch.any() {
			kinds.add(o.kinds, o.name)
		}
	}
	m.mismatch.Kinds = kinds.texts()
	if err == nil && m.mismatch.any() {
		err = &m.mismatch
	}
	return at, err
}

// want finds tensors that must be present together or not at all.
func (m *matching) want(list []Tensor, at []int) {
	var missing []string
	accepted := true
	for i := range list {
		t := &list[i]
		k := m.key(t)
		var ok bool
		if at[i], ok = m.index[k]; ok {
			m.used[at[i]] = true
			if m.compare(&m.have[at[i]], t); m.have[at[i]].lacked {
				m.compareBase(&m.have[at[i]])
				at[i] = -1
			}
			continue
		}
		at[i] = -1
		if t.Entry == "" && t.Len() == 0 {
			continue
		}
		missing = append(missing, k.Name())
		accepted = accepted && allows(m.options.AllowMissing, k.Name())
	}
	if len(missing) > 0 && (!accepted || len(missing) < len(list)) {
		m.mismatch.Missing = append(m.mismatch.Missing, missing...)
	}
}

// compare compares the shape and type of h with the expected ones.
func (m *matching) compare(h *found, t *Tensor) {
	e := &m.mismatch
	switch shape := m.naming.shape(t); {
	case !slices.Equal(Squeezed(h.Shape), Squeezed(shape)):
		e.Reshaped = append(e.Reshaped, fmt.Sprintf("%s %v -> %v", h.Name(), h.Shape, shape))
	case !h.DType.IsFloat():
		e.Reshaped = append(e.Reshaped, fmt.Sprintf("%s %v -> %v", h.Name(), h.DType, m.compute))
	case m.counted && t.Entry != "" && h.Steps < 0:
		e.Missing = append(e.Missing, fmt.Sprintf("%s's number of updates", h.Name()))
	}
}

// compareBase compares a frozen parameter, which the state lacks, with the model's.
func (m *matching) compareBase(h *found) {
	sum, frozen := m.frozen[h.Key]
	switch e := &m.mismatch; {
	case frozen && sum == h.sum || allows(m.options.AllowMissing, h.Name()):
	case frozen:
		e.Changed = append(e.Changed, h.Name())
	default:
		e.Missing, e.trained = append(e.Missing, h.Name()), true
	}
}

// allows asks a function of AllowMissing or AllowExtra about a tensor, by its name and by the name
// without its rank.
func allows(f func(string) bool, name string) bool {
	if f == nil {
		return false
	}
	if f(name) {
		return true
	}
	plain, rank, ok := cutLast(name, "@")
	return ok && rank != "" && strings.Trim(rank, "0123456789") == "" && f(plain)
}

// cutLast is strings.Cut at the last sep.
func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// Squeezed returns shape without dimensions of 1: a scalar comes back as a tensor of one element.
func Squeezed(shape []int) []int {
	return slices.DeleteFunc(slices.Clone(shape), func(d int) bool { return d == 1 })
}
