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

// Whether a state fits the model and its optimizer is one question, whatever the state is: a
// checkpoint for Load, a file for Import, the full state of an optimizer for SetFullOptim.
//
//	names         those of the state: the model's after Rename, "exp_avg:wte.weight" for an
//	              entry of an optimizer, "experts.up@2" where ranks differ
//	"optimizer"   the number of an optimizer's steps. It is missing if the state has none, and
//	              there is an entry or AllowMissing does not accept it
//	AllowMissing  is asked for the name, and for the name without the rank: what it accepts need
//	              not be there and keeps its value. A tensor without elements never needs to be
//	AllowExtra    is asked likewise: what it accepts is passed over. Nobody is asked about state
//	              of an optimizer where none is given, nor buffers of ranks that are no more
//	kinds         of optimizers are equal, as far as they are known, where entries pass
//	entries       of one parameter are there together or not at all, whatever AllowMissing says
//	shapes        are equal but for dimensions of 1, after Transpose
//	types         are floats, of any size
//
// All that does not fit is found before anything changes. All ranks compare the same lists, so they
// come to the same result if their options are the same; if these are not, one error is
// everybody's.

// stepsName stands for the number of steps of an optimizer, which plain SGD has although it keeps
// no tensors.
const stepsName = "optimizer"

// A found is a tensor of a file, checkpoint or full state.
type found struct {
	checkpoint.Key // as it is called there; of a file, all of the name is Param
	Shape          []int
	DType          safetensors.DType
	Steps          int  // updates that the entry of an optimizer has had, -1 if that is not known
	idle           bool // nobody expects that it is of use
}

// A matching compares what is wanted with what there is.
type matching struct {
	options *Options
	naming  *naming
	compute comm.DType
	key     func(t *Tensor) checkpoint.Key // what a wanted tensor is called there
	have    []found                        // in the order of the state
	counted bool                           // the number of an optimizer's steps is known

	index    map[checkpoint.Key]int // in have
	used     []bool                 // by index in have
	mismatch Mismatch
}

// match looks for the tensors of a list, those of one parameter together, and of an optimizer
// unless its state is not asked for. others are parameters whose optimizers are of other kinds, which
// is wrong unless nothing passes between them and the options accept that. It returns the indices of
// the tensors in have, or -1, or a *Mismatch.
func (m *matching) match(where string, list []Tensor, optimizer bool, others []other) (at []int, err error) {
	m.mismatch.Where = where
	m.used, m.index = make([]bool, len(m.have)), make(map[checkpoint.Key]int, len(m.have))
	for i := range m.have {
		m.index[m.have[i].Key] = i
	}
	at = make([]int, len(list))
	passed := make(map[int]bool) // parameters with entries that are there
	err = ranks.Guarded("an option", func() error {
		for i := 0; i < len(list); {
			n := 1 // what belongs together: a value, or all that an optimizer keeps for it
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

// want looks for tensors that are there together or not at all.
func (m *matching) want(list []Tensor, at []int) {
	var missing []string
	accepted := true
	for i := range list {
		t := &list[i]
		k := m.key(t)
		var ok bool
		if at[i], ok = m.index[k]; ok {
			m.used[at[i]] = true
			m.compare(&m.have[at[i]], t)
			continue
		}
		if at[i] = -1; t.Entry == "" && t.Len() == 0 {
			continue
		}
		missing = append(missing, k.Name())
		accepted = accepted && allows(m.options.AllowMissing, k.Name())
	}
	if len(missing) > 0 && (!accepted || len(missing) < len(list)) {
		m.mismatch.Missing = append(m.mismatch.Missing, missing...)
	}
}

// compare compares shape and type with what they are to be.
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

// allows asks a function of AllowMissing or AllowExtra about a tensor, by its name and by the name
// without the rank whose tensor it is.
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
