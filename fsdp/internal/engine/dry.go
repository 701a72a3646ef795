package engine

import (
	"context"
	"errors"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/optim/vec"
)

// Dry is a Host without memory, for plans: it counts the memory that a Host would allocate, and
// runs no pass. Its vectors have only a length.
type Dry struct {
	*host
	Far     bool // its vectors cannot be accessed directly: none is an vec.Addressable
	threads int
	files   bool
}

// host is embedded by another name, as Host is a method.
type host = Host

// errDry is the error of every access to memory that does not exist.
var errDry = errors.New("engine: a plan has no memory to read or write")

// NewDry returns a Dry that counts like a Host of these options.
func NewDry(o HostOptions) *Dry {
	from := arena.Sources{Collective: o.Collective}
	if o.Dir != "" {
		files := new(nofiles)
		from.Shard, from.Spill = files, files
	}
	return &Dry{host: &Host{arena: arena.New(from).Dry()}, threads: o.Threads, files: o.Dir != ""}
}

// Threads implements Device.
func (d *Dry) Threads() int { return d.threads }

// nofiles is a source of memory in files that is never used.
type nofiles struct{ _ int }

func (*nofiles) Alloc(int) ([]byte, error) { return nil, errDry }
func (*nofiles) Free([]byte) error         { return errDry }

// InFile implements Device.
func (d *Dry) InFile(c arena.Class) bool { return d.files && inFile(c) }

// Open panics: a Dry runs no pass.
func (d *Dry) Open(*Compiled, int, Shards, []exec.Value) Frame { panic(errDry) }

// NewShards implements Device. There are no meshes.
func (d *Dry) NewShards(_ context.Context, l *layout.Layout, _ []ranks.Mesh) (Shards, error) {
	s := &dryShards{d: d, hostShards: hostShards{h: d.host}, layout: l}
	for i := range l.Groups {
		f := &flatGroup{Group: &l.Groups[i]}
		s.groups = append(s.groups, f)
		f.value, _ = d.arena.Alloc(f.ShardBytes()+f.CopyBytes(), arena.Shard) // an arena without memory cannot fail
		if !f.Kind.Frozen {
			f.grad, _ = d.arena.Alloc(f.ShardBytes(), arena.Shard)
		}
		if f.ErrorBytes() > 0 {
			f.lost, _ = d.arena.Alloc(f.ErrorBytes(), arena.Shard)
		}
	}
	return s, nil
}

// dryShards implements Shards.
type dryShards struct {
	hostShards
	d      *Dry
	layout *layout.Layout
}

// Value implements Shards.
func (s *dryShards) Value(group int) optim.Vec {
	g := &s.layout.Groups[group]
	return s.vec(g.Flat.ShardLen(), g.Store)
}

// vec returns n elements of type t.
func (s *dryShards) vec(n int, t comm.DType) optim.Vec {
	v := dryVec{n, t}
	if s.d.Far || t == comm.BFloat16 {
		return v
	}
	return nearVec{v}
}

// Grad implements Shards.
func (s *dryShards) Grad(group int) optim.Vec {
	if s.layout.Groups[group].Kind.Frozen {
		return nil
	}
	return s.Value(group)
}

// Alloc implements Shards.
func (s *dryShards) Alloc(group, n int) (optim.Vec, error) {
	g := &s.layout.Groups[group]
	b, _ := s.d.arena.Alloc(n*g.Compute.Size(), arena.State)
	s.state = append(s.state, b)
	return s.vec(n, g.Compute), nil
}

// A dryVec is a vector of which only the length is known.
type dryVec struct {
	n int
	t comm.DType
}

var (
	_ vec.Adam8Vec    = dryVec{}
	_ vec.BFloat16Vec = dryVec{}
	_ vec.MuonVec     = dryVec{}
	_ vec.Addressable = nearVec{}
)

func (v dryVec) Len() int                     { return v.n }
func (v dryVec) Float64() bool                { return v.t == comm.Float64 }
func (v dryVec) Bits() int                    { return 8 * v.t.Size() }
func (v dryVec) Slice(from, to int) optim.Vec { return dryVec{to - from, v.t} }
func (v dryVec) Zero() error                  { return nil }
func (v dryVec) Read(optim.Host) error        { return errDry }
func (v dryVec) Write(optim.Host) error       { return errDry }

func (v dryVec) Adam(_, _, _ optim.Vec, _ vec.AdamStep) error                   { return errDry }
func (v dryVec) Adam8(_, _, _ optim.Vec, _ int, _ vec.AdamStep) error           { return errDry }
func (v dryVec) SGD(_, _ optim.Vec, _ vec.SGDStep) error                        { return errDry }
func (v dryVec) Adam16(_, _, _ optim.Vec, _ vec.Rounding, _ vec.AdamStep) error { return errDry }
func (v dryVec) Momentum(_, _ optim.Vec, _ float64, _ bool) error               { return errDry }
func (v dryVec) Orthogonalize(_, _ int, _ vec.MuonStep) error                   { return errDry }
func (v dryVec) Descend(_ optim.Vec, _, _ float64) error                        { return errDry }
func (v dryVec) SGD16(_, _ optim.Vec, _ vec.Rounding, _ vec.SGDStep) error      { return errDry }

// A nearVec is a dryVec of a host.
type nearVec struct{ dryVec }

func (v nearVec) Slice(from, to int) optim.Vec { return nearVec{dryVec{to - from, v.t}} }
func (v nearVec) Elements() optim.Host         { return optim.Host{} }
