package fsdp

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/profile"
	"github.com/gofsdp/gofsdp/internal/launch"
)

// Config configures Wrap. The zero value shards fully (ZeRO-3) over one rank, in one unit, in
// float32, with one unit gathered ahead. Every rank must use the same values, except for Group,
// the groups of Unit, Threads, Offload, Activations.Offload, Poison, Observers and Logger; Wrap
// checks that. A TraceDir and a HashDir are given on all ranks or on none.
type Config struct {
	// Group is the process group to train on. nil means one rank, and is a warning if a launcher or
	// comm.Run has started several. No other code may use its collectives while a method of Sharded
	// runs. If it is a [comm.Allocator], parameters and gradients live in its memory. Sharded does
	// not close it: keep it open until [Sharded.Close].
	Group comm.Group

	// Device, if set, is the GPU that this rank computes on, see package fsdp/gpu. Parameters,
	// gradients, the optimizer's state and activations live in its memory, and NCCL carries the
	// data that ranks exchange in a pass. Group may then be any group: it carries the agreement of
	// ranks, and checkpoints. Either all ranks have a Device, each a different one, or none has.
	// The caller closes it after [Sharded.Close]. Every operation of the model must have kernels:
	// stock operations of Gorgonia have none, and the first pass names them. Threads and Offload.Dir
	// are for the processor. NCCL sums over ranks: the sums are the same in every run over the same
	// ranks, and within rounding of the sums of other groups.
	Device Device

	// Strategy decides which state is cut over the ranks, and when parameters are whole.
	Strategy Strategy
	// ShardRanks is the number of consecutive ranks, such as the ranks of one host, over which
	// HybridShard and HybridGradOp cut parameters, and SecondaryShard its second copy. To cut over
	// other ranks, order the ranks of Group by Split. These strategies need it, and it must divide
	// the number of ranks. If it is a power of two, hybrid strategies have the bits of the others;
	// SecondaryShard always has.
	ShardRanks int
	// Unit, if set, may change the strategy, the process group and the cut of each unit. See
	// [KeepBelow].
	Unit func(u *UnitConfig)

	// WrapPolicy groups the parameters into units; nil puts all of them into the root unit.
	WrapPolicy Policy
	// Precision of parameters, gradients and computation.
	Precision Precision
	// GradAverage is the divisor of the summed gradients, unless Backward has a [Share].
	GradAverage GradAverage
	// VirtualRanks, if set, makes a training the same, to the last bit, on any number of ranks up to
	// it: the training on VirtualRanks ranks. A step is then ⌈VirtualRanks/ranks⌉ micro-batches on
	// each rank. If the ranks do not divide VirtualRanks, some ranks have no batch in the last one.
	// The package comment lists the order and the features that it covers. On VirtualRanks ranks it
	// costs nothing and changes nothing, except the rounding of ByWeights and ByActive, and that
	// full gradients stay float32 with Reduce BFloat16. On GPUs ranks exchange gradients and add
	// them in this order, in place of NCCL's sums.
	VirtualRanks int
	// Prefetch is the number of units gathered ahead of the unit that computes. 0 means 1,
	// NoPrefetch means none.
	Prefetch int
	// InFlight, if positive, limits the bytes of collectives in flight: a unit is gathered ahead
	// only within this limit.
	InFlight int

	// Threads is the number of cores that this rank computes on: the goroutine that calls its
	// methods and Threads-1 others, which [Sharded.Close] ends. 0 means 1. Results have the same
	// bits for any number. Ranks scale better than threads, because each computes alone between
	// exchanges. Threads need no second copy of the data that a rank holds whole, and no larger
	// batch. Keep the threads of all ranks of a process within GOMAXPROCS, and the threads of all
	// processes of a host within its cores: a thread spins for some microseconds between two
	// operations.
	Threads int

	// Frozen selects parameters that are not trained, by full name. They have no gradient and no
	// optimizer state. In backward they are whole only while the gradient of a trained parameter
	// needs them. If all are frozen, Backward does nothing. Nil selects none; [Sharded.Freeze]
	// changes it.
	Frozen func(name string) bool
	// Ignored selects parameters, by full name, that are not sharded: every rank holds them, and
	// their gradients are summed by all-reduce. Neither is rounded to 16 bits. Nil selects none.
	Ignored func(name string) bool

	// Activations says what calls keep for backward, and where.
	Activations Activations
	// Offload moves shards and the optimizer's state out of the memory that computes.
	Offload Offload

	// Seed of the initial parameters, of dropout and of random nodes.
	Seed uint64
	// Poison fills freed buffers with NaN, so that a use after free shows. It costs a pass over
	// that memory: for tests.
	Poison bool
	// Observers record passes: see [TraceFunc], [TraceDir], [HashDir] and [Profile].
	Observers []Observer
	// Logger, if set, gets the decisions of Wrap and Freeze (units, strategies and memory), and
	// warnings of likely mistakes: parameters that the loss does not depend on, fields that select
	// nothing or less than they name, and damaged checkpoints that Load skips. Without it, rank 0
	// gives the warnings to [slog.Default].
	Logger *slog.Logger

	observe observers // withDefaults sets it to Observers
}

// Activations are policies that say what calls keep for backward. Calls that neither Recompute nor
// Save selects keep expensive results, such as products, and recompute cheap ones, such as
// activations. No policy changes a result.
type Activations struct {
	// Recompute selects calls that keep only their inputs for backward and recompute the rest
	// (activation checkpointing): least memory, a third more computation. Nil selects none.
	Recompute Policy
	// Save selects calls that keep everything their backward uses: most memory, and nothing is
	// computed twice. Nil selects none.
	Save Policy
	// Offload selects calls that keep the data for their backward in files under Config.Offload.Dir.
	// Nil selects none. As long as RAM has room for the files, a pass takes no longer than without
	// it, while Recompute takes 1.2 times as long. Without room, the system writes the files to the
	// disk and reads them back in every pass. So Offload pays for calls whose computation takes
	// longer than the disk takes for their data. Calls that Recompute selects too offload only
	// their inputs.
	Offload Policy
}

// String returns the fields that are set.
func (a Activations) String() string { return setFields(a) }

// Offload says where shards of parameters and gradients and the optimizer's state are, if not in
// the memory that computes. Results have the same bits.
type Offload struct {
	// Dir, if set, is a directory for files that are mapped into memory in place of RAM: shards of
	// parameters and gradients, the optimizer's state, and what Activations.Offload selects. The
	// system writes back and drops what is not in use, so a model may be larger than memory. The
	// files have no names, so a rank that is killed leaves at most an empty directory; ranks may
	// share Dir. A full disk is an error of Wrap, of making an optimizer, or of the pass that
	// writes. Linux and macOS only. Not with Config.Device.
	Dir string
	// Pinned puts shards of parameters and gradients and the optimizer's state in pinned memory of
	// the host instead of Config.Device's. Device reads and writes them there whenever it gathers,
	// reduces or updates, so each step takes the time of the bus. The host needs that much memory,
	// which cannot be swapped. Parameters that every rank has whole stay on the device.
	Pinned bool
}

// String returns the fields that are set.
func (o Offload) String() string { return setFields(o) }

// An Observer records the passes of a model: a [TraceFunc], a [TraceDir], a [HashDir] or what
// [Profile] returns. Config.Observers may have several functions, and at most one of each other
// kind.
type Observer interface {
	attach(o *observers) error
}

// A TraceFunc is called after every operation of a pass, on the rank's own goroutine. On a GPU the
// host then waits for each operation except collectives, which continue.
type TraceFunc func(Event)

// A TraceDir is a directory in which each rank writes rank-0.pftrace, …: its operations and waits,
// the collectives in flight, and its memory, on the clock of rank 0. Perfetto
// (https://ui.perfetto.dev) opens them, also joined to one file, as fsdprun -trace does. Without
// one, the variable FSDP_TRACE names it. A pass takes some 100 bytes for each operation, and is
// written at its end. After a write error the trace ends, and Close returns the error. The groups
// in use are watched: see [transport.Watcher]. On a GPU the device times the collectives, and calls
// are recorded as with a TraceFunc.
type TraceDir string

// A HashDir is a directory in which each rank writes rank-0.hashes, …: hashes of parameters,
// batches, results of calls and gradients in training passes. The command fsdpdiff finds the first
// step, call and parameter in which two runs differ. Without one, the variable FSDP_HASHES names
// it. Wrap fails if the files already exist. Close returns write errors. Later starts of a job, and
// further models of a process, write to separate directories in it.
type HashDir string

// Profile returns an observer that counts the time of this model's operations in p, so that p can
// report which rank delays the others and how the run differs from the plan: see package profile.
// Each model and rank has a separate one. To compare ranks, all must have one. If FSDP_STRAGGLERS
// names a directory, as under fsdprun -stragglers, Wrap makes one that leaves its totals there. A
// step takes some microseconds longer. With Config.Device the host waits for each operation, as
// with a TraceFunc.
func Profile(p *profile.Profile) Observer { return profiling{p} }

type profiling struct{ *profile.Profile }

// observers are the observers of a model by kind.
type observers struct {
	trace    []TraceFunc
	traceDir string
	hashDir  string
	profile  *profile.Profile
}

func (f TraceFunc) attach(o *observers) error {
	if f != nil {
		o.trace = append(o.trace, f)
	}
	return nil
}

func (d TraceDir) attach(o *observers) error { return once(&o.traceDir, string(d), "TraceDir") }
func (d HashDir) attach(o *observers) error  { return once(&o.hashDir, string(d), "HashDir") }

func (p profiling) attach(o *observers) error { return once(&o.profile, p.Profile, "Profile") }

// once sets an observer of a kind that a model has at most one of.
func once[T comparable](to *T, v T, kind string) error {
	var none T
	switch {
	case v == none:
		return nil
	case *to != none:
		return fmt.Errorf("Config.Observers has two of the kind %s, want one", kind)
	}
	*to = v
	return nil
}

// observed returns the observers of the configuration and of the environment.
func (c *Config) observed() (o observers, err error) {
	for i, v := range c.Observers {
		if v == nil {
			return o, fmt.Errorf("Config.Observers[%d] is nil", i)
		}
		if err := v.attach(&o); err != nil {
			return o, err
		}
	}
	o.traceDir = cmp.Or(o.traceDir, os.Getenv(launch.Trace))
	o.hashDir = cmp.Or(o.hashDir, os.Getenv(launch.Hashes))
	if o.profile == nil && os.Getenv(launch.Stragglers) != "" {
		o.profile = profile.New()
	}
	return o, nil
}

// any reports whether an observer gets the operations of passes.
func (o *observers) any() bool {
	return o.trace != nil || o.traceDir != "" || o.hashDir != "" || o.profile != nil
}

// A Device is the GPU that a rank computes on instead of the processor. Only package fsdp/gpu has
// one, so programs that need no GPU do not link it.
type Device interface {
	// Engine returns the device that passes run on. It is for this library.
	Engine(o engine.DeviceOptions) (engine.Device, error)
	// Settings returns the settings that must be equal on all ranks, as text.
	Settings() string
}

// String returns the fields that are set.
func (c Config) String() string { return "Config" + setFields(c) }

// LogValue implements [slog.LogValuer]: it is String.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

// setFields returns the fields of a struct that are not zero. A field without text is shown as set.
func setFields(s any) string {
	var set []string
	v := reflect.ValueOf(s)
	for i := range v.NumField() {
		f := v.Field(i)
		if f.IsZero() || !v.Type().Field(i).IsExported() {
			continue
		}
		text := "set"
		if g, ok := f.Interface().(comm.Group); ok {
			text = fmt.Sprintf("rank %d of %d", g.Rank(), g.Size())
		} else if k := f.Kind(); k != reflect.Func && k != reflect.Pointer && k != reflect.Interface && k != reflect.Slice {
			text = fmt.Sprint(f)
		}
		set = append(set, v.Type().Field(i).Name+": "+text)
	}
	return "{" + strings.Join(set, ", ") + "}"
}

// NoPrefetch as Config.Prefetch gathers each unit when it is needed.
const NoPrefetch = -1

// GradAverage is the divisor of the ranks' summed gradients. With [Share], which most trainings
// should use, both ByRanks and ByOne are right:
//
//	Backward with Share      ByRanks or ByOne: the mean over the step's targets, or rows
//	Backward                 ByRanks: the mean of the ranks' losses, whatever each has
//	                         ByActive: the mean over ranks that have a batch
//	Backward with Weight     ByWeights: the mean of the ranks' losses by these weights
//	Backward with Scale      ByOne: the sum of the losses, each times its factor
type GradAverage uint8

// The divisors.
const (
	// ByRanks makes gradients means over all ranks of Config.Group.
	ByRanks GradAverage = iota
	// ByWeights makes them means weighted by the numbers that each rank gives to Backward by
	// [Weight], such as the number of its tokens. If each rank's loss is the mean over its own
	// tokens, the result is the gradient of the mean over all tokens of a Backward. Several
	// Backwards add up as without weights.
	ByWeights
	// ByActive makes them means over the ranks that have a batch, see [Sharded.Join], or that run a
	// Backward together, see [Sharded.JoinCalls]. For a parameter of calls that may be absent, see
	// [Tape.Optional], only the ranks among them that have used it count. Without Join,
	// JoinCalls and Optional it equals ByRanks.
	ByActive
	// ByOne leaves them sums.
	ByOne
)

// String returns the divisor's name.
func (d GradAverage) String() string {
	names := [...]string{"ByRanks", "ByWeights", "ByActive", "ByOne"}
	if int(d) < len(names) {
		return names[d]
	}
	return fmt.Sprintf("GradAverage(%d)", uint8(d))
}

// factor returns the factor for sums of gradients.
func (c *Config) factor() float64 {
	if c.GradAverage == ByOne {
		return 1
	}
	return 1 / float64(c.virtualRanks())
}

// virtualRanks returns the number of ranks, or of virtual ranks, that the gradients of a step are
// the mean over.
func (c *Config) virtualRanks() int { return max(c.VirtualRanks, c.Group.Size()) }

// preScale returns the factor for gradients of a group before they are summed. If they travel as
// Float16 it is a power of two near 1/√N, so that neither they nor their sum easily leave its
// range; otherwise it is 1.
func (c *Config) preScale(g *layout.Group) float32 {
	if g.Round != comm.Float16 || c.GradAverage == ByOne {
		return 1
	}
	n, pre := c.virtualRanks(), 1
	for n%pre == 0 && n/pre > pre {
		pre *= 2
	}
	return 1 / float32(pre)
}

// mostThreads is larger than the core count of any processor. A rank has scratch memory for each
// thread.
const mostThreads = 1024

// withDefaults returns c with zero values replaced, or an error for an invalid field.
func (c Config) withDefaults() (Config, error) {
	var err error
	if c.Precision, err = c.Precision.withDefaults(); err != nil {
		return c, err
	}
	switch {
	case c.Prefetch == 0:
		c.Prefetch = 1
	case c.Prefetch == NoPrefetch:
		c.Prefetch = 0
	case c.Prefetch < 0:
		return c, fmt.Errorf("Config.Prefetch is %d: want a depth, or NoPrefetch", c.Prefetch)
	}
	if c.Threads == 0 {
		c.Threads = 1
	}
	if c.observe, err = c.observed(); err != nil {
		return c, err
	}
	switch {
	case c.Threads < 0 || c.Threads > mostThreads:
		return c, fmt.Errorf("Config.Threads is %d: want a number of cores, at most %d, or 0", c.Threads, mostThreads)
	case c.Strategy >= strategies:
		return c, fmt.Errorf("Config.Strategy is %v: want one of %v to %v", c.Strategy, FullShard, strategies-1)
	case c.GradAverage > ByOne:
		return c, fmt.Errorf("Config.GradAverage is %v: want ByRanks, ByWeights, ByActive or ByOne", c.GradAverage)
	case c.InFlight < 0:
		return c, fmt.Errorf("Config.InFlight is %d: want a number of bytes, or 0", c.InFlight)
	case c.ShardRanks < 0 || c.ShardRanks > 0 && c.Group.Size()%c.ShardRanks != 0:
		return c, fmt.Errorf("Config.ShardRanks is %d, which does not divide the %d ranks", c.ShardRanks, c.Group.Size())
	case c.Device == nil && c.Precision.Compute == Float16:
		return c, errors.New("Config.Precision.Compute is float16, which needs Config.Device: processors have no kernels of it, " +
			"want BFloat16, which has the range of Float32; Gather and Reduce may be Float16")
	case c.Device != nil && c.Threads > 1:
		return c, fmt.Errorf("Config.Threads is %d, but Config.Device computes: set only one of them", c.Threads)
	case c.Device != nil && c.Offload.Dir != "":
		return c, fmt.Errorf("Config.Offload.Dir is %q, but memory of Config.Device cannot be in files: set Offload.Pinned instead", c.Offload.Dir)
	case c.Offload.Pinned && c.Device == nil:
		return c, errors.New("Config.Offload.Pinned is set, but there is no Config.Device: set both or neither")
	case c.Activations.Offload != nil && c.Offload.Dir == "":
		return c, errors.New("Config.Activations.Offload selects calls, but Config.Offload.Dir names no directory")
	}
	if err = c.checkVirtual(); err != nil {
		return c, err
	}
	if err = c.checkTypes(c.Precision.Gather, c.Precision.Reduce); err != nil {
		err = fmt.Errorf("Config.Precision is %v: %w", c.Precision, err)
	}
	return c, err
}

// passes returns how many passes each rank makes in a step, or 0 if the configuration does not say.
func (c *Config) passes() int { return (c.VirtualRanks + c.Group.Size() - 1) / c.Group.Size() }

// checkVirtual returns an error if Config.VirtualRanks contradicts another field. virtualModel
// checks the model.
func (c *Config) checkVirtual() error {
	v, n := c.VirtualRanks, c.Group.Size()
	if v != 0 && v < n {
		return fmt.Errorf("Config.VirtualRanks is %d: want at least the %d ranks", v, n)
	}
	return nil
}

// without is a part of advice to run the other micro-batches of a step.
func (l *life) without() string {
	if l.uneven {
		return ", without a batch on a rank that has no virtual rank left"
	}
	return ""
}

// virtualModel returns an error if Config.VirtualRanks does not support the model.
func virtualModel(c *Config, tr *trace, units []*unit) error {
	if c.VirtualRanks == 0 {
		return nil
	}
	if c.GradAverage == ByActive && tr.path().Varies() {
		return errors.New("Config.VirtualRanks does not support Config.GradAverage = ByActive for a model with optional calls (Tape.Optional): " +
			"the batches that use a parameter are known only after the last batch of a step")
	}
	for _, p := range tr.params {
		if p.Buffer {
			return fmt.Errorf("Config.VirtualRanks does not support buffers, such as %s: each rank has values of its own", p.Name)
		}
	}
	for _, u := range units {
		hybrid := u.strategy.cut() == layout.Some && c.ShardRanks > 1 && c.ShardRanks < c.Group.Size()
		switch {
		case u.group != nil:
			return fmt.Errorf("Config.VirtualRanks: Config.Unit gives unit %s its own group, so its parameters depend on the number of ranks", u.Name)
		case hybrid && c.ShardRanks&(c.ShardRanks-1) != 0:
			return fmt.Errorf("Config.VirtualRanks: %v over %d ranks sums in another order: Config.ShardRanks must be a power of two", u.strategy, c.ShardRanks)
		}
		for _, k := range u.kinds {
			if reduce := cmp.Or(k.Reduce, c.Precision.Reduce.comm()); hybrid && !k.Full && !k.Frozen && reduce != c.Precision.wide().comm() {
				return fmt.Errorf("Config.VirtualRanks: %v rounds gradients twice if they are reduced as %v: set Config.Precision.Reduce to %v, or use another strategy",
					u.strategy, reduce, c.Precision.wide())
			}
		}
	}
	return nil
}

// errVirtual is the error of calls that would run passes in another order than the micro-batches of
// a step.
var errVirtual = errors.New("with Config.VirtualRanks all ranks run the same passes, one after the other, each Forward with its Backward: the order selects the virtual rank of a batch")
