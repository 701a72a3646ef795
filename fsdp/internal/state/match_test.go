package state

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// all accepts every name, oneOf some.
func all(string) bool { return true }

func oneOf(names ...string) func(string) bool {
	return func(name string) bool { return strings.Contains(" "+strings.Join(names, " ")+" ", " "+name+" ") }
}

// have is a tensor as a state has it. Counts are known.
func have(name string, shape ...int) found {
	return found{Key: checkpoint.Key{Param: name, Owner: checkpoint.Shared}, Shape: shape, DType: safetensors.F32, Steps: 3}
}

// TestMatch is the table of what options mean, for whatever kind of state.
func TestMatch(t *testing.T) {
	l := plainLayout(t, 1, 0, []int{4, 1}, []int{3}, []int{0})
	values := []Tensor{shared(0, "a", "", 4, 1), shared(1, "b", "", 3)}
	expert := Tensor{Key: checkpoint.Key{Param: "b", Owner: 2}, Index: 1, Shape: []int{3}}
	adam := []Tensor{shared(0, "a", "m", 4, 1), shared(0, "a", "v", 4, 1)}
	full := []found{have("a", 4, 1), have("b", 3)}
	ints := have("b", 3)
	ints.DType = "I64"
	idle, uncounted := have("z", 1), have("m:a", 4)
	idle.idle, uncounted.Steps = true, -1
	sgd := []other{{0, "SGD -> Adam", "a"}, {1, "SGD -> Adam", "b"}}
	for name, c := range map[string]struct {
		want    []Tensor
		have    []found
		options Options
		optim   bool // with an optimizer's state
		none    bool // the number of its steps is not known
		others  []other
		fits    Mismatch
		err     string
	}{
		"all there":                       {want: values, have: full},
		"missing":                         {want: values, have: full[:1], fits: Mismatch{Missing: []string{"b"}}},
		"may be missing":                  {want: values, have: full[:1], options: Options{AllowMissing: oneOf("b")}},
		"another may be":                  {want: values, have: full[:1], options: Options{AllowMissing: oneOf("a")}, fits: Mismatch{Missing: []string{"b"}}},
		"of a rank":                       {want: []Tensor{expert}, fits: Mismatch{Missing: []string{"b@2"}}},
		"of a rank, by its name":          {want: []Tensor{expert}, options: Options{AllowMissing: oneOf("b@2")}},
		"of a rank, by that of all":       {want: []Tensor{expert}, options: Options{AllowMissing: oneOf("b")}},
		"without elements":                {want: []Tensor{shared(2, "c", "", 0)}},
		"extra":                           {have: full, fits: Mismatch{Extra: []string{"a", "b"}}},
		"may be extra":                    {have: full, options: Options{AllowExtra: all}},
		"extra of a rank, by that of all": {have: []found{have("b@12", 3)}, options: Options{AllowExtra: oneOf("b")}},
		"no rank":                         {have: []found{have("b@x", 3)}, options: Options{AllowExtra: oneOf("b")}, fits: Mismatch{Extra: []string{"b@x"}}},
		"nobody asks":                     {have: []found{idle}},
		"dimensions of 1":                 {want: values[:1], have: []found{have("a", 1, 4)}},
		"another shape":                   {want: values[:1], have: []found{have("a", 2, 2)}, fits: Mismatch{Reshaped: []string{"a [2 2] -> [4 1]"}}},
		"integers":                        {want: values[1:], have: []found{ints}, fits: Mismatch{Reshaped: []string{"b I64 -> float32"}}},
		"renamed":                         {want: values[:1], have: []found{have("x.a", 4)}, options: Options{Rename: func(n string) string { return "x." + n }}},
		"state":                           {want: adam, have: []found{have("m:a", 4), have("v:a", 4)}, optim: true},
		"no state":                        {want: adam, optim: true, fits: Mismatch{Missing: []string{"m:a", "v:a"}}},
		"state may be missing":            {want: adam, optim: true, options: Options{AllowMissing: all}},
		"one may be missing, not both":    {want: adam, optim: true, options: Options{AllowMissing: oneOf("m:a")}, fits: Mismatch{Missing: []string{"m:a", "v:a"}}},
		"a part may not":                  {want: adam, have: []found{have("m:a", 4)}, optim: true, options: Options{AllowMissing: all}, fits: Mismatch{Missing: []string{"v:a"}}},
		"steps":                           {optim: true, none: true, fits: Mismatch{Missing: []string{"optimizer"}}},
		"steps may be missing":            {optim: true, none: true, options: Options{AllowMissing: oneOf("optimizer")}},
		"steps may not, with state": {want: adam, have: []found{have("m:a", 4), have("v:a", 4)}, optim: true, none: true,
			options: Options{AllowMissing: all}, fits: Mismatch{Missing: []string{"optimizer"}}},
		"updates": {want: adam[:1], have: []found{uncounted}, optim: true, fits: Mismatch{Missing: []string{"m:a's number of updates"}}},
		"all that is wrong": {want: values, have: []found{have("a", 5), have("x", 1), have("y", 1)},
			fits: Mismatch{Missing: []string{"b"}, Extra: []string{"x", "y"}, Reshaped: []string{"a [5] -> [4 1]"}}},
		"another optimizer":                {want: adam, have: []found{have("m:a", 4), have("v:a", 4)}, optim: true, others: sgd, fits: Mismatch{Kinds: []string{"SGD -> Adam of a"}}},
		"another optimizer, other entries": {want: adam, optim: true, others: sgd, fits: Mismatch{Missing: []string{"m:a", "v:a"}, Kinds: []string{"SGD -> Adam of a, b"}}},
		"another optimizer, nothing taken": {want: adam, optim: true, others: sgd, options: Options{AllowMissing: all}},
		"AllowMissing panics":              {want: values, options: Options{AllowMissing: func(string) bool { panic("not today") }}, err: "not today"},
	} {
		n, err := c.options.naming(l)
		require.NoError(t, err, name)
		m := &matching{options: &c.options, naming: n, compute: comm.Float32, key: n.fileKey, have: c.have, counted: !c.none}
		at, err := m.match("the file", c.want, c.optim, c.others)
		if c.err != "" {
			require.ErrorContains(t, err, c.err, name)
			continue
		}
		c.fits.Where = "the file"
		var unfit *Mismatch
		if errors.As(err, &unfit) {
			require.Equal(t, c.fits, *unfit, name)
			continue
		}
		require.NoError(t, err, name)
		require.Empty(t, append(append(c.fits.Missing, c.fits.Extra...), append(c.fits.Reshaped, c.fits.Kinds...)...), name)
		for i := range c.want {
			if at[i] >= 0 {
				require.Equal(t, n.fileKey(&c.want[i]), c.have[at[i]].Key, name)
			}
		}
	}
}

// TestMismatch lists a few names of each kind.
func TestMismatch(t *testing.T) {
	m := &Mismatch{Where: "file x", Missing: []string{"1", "2", "3", "4", "5", "6", "7"}, Reshaped: []string{"w [1] -> [2]"}}
	require.EqualError(t, m, "file x does not fit the model: missing 1, 2, 3, 4, 5 and 2 more, see AllowMissing; reshaped w [1] -> [2]: give the model the sizes that it was saved with, or begin with new values: Rename to a name that AllowMissing accepts, and accept the old one by AllowExtra")
}
