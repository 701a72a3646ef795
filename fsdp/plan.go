package fsdp

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/timeline"
	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/fsdp/profile"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/launch"
)

// A Plan predicts the resources of training on a batch, before anything runs. Bytes are per rank.
type Plan struct {
	Params        int         // elements of the whole model
	Ranks         int         // that share them
	Compute       DType       // Precision.Compute
	Kernels       string      // that multiply it: AMX, AVX-512 and so on, or GPU; "AVX2, widened" takes longer than Float32; "GPU, without tensor cores" and "GPU, in TF32" are for Float32: see Stock
	Groups        []GroupPlan // the root unit first, if it has parameters
	ShardBytes    int         // this rank's parameters and gradients, padding included
	CopyBytes     int         // of ShardBytes: a copy of parameters in bfloat16, which updates write on a GPU: see ShardGradOp
	CutBytes      int         // of ShardBytes: padding due to Config.Unit, beyond equal shards
	ErrorBytes    int         // of rounding errors of gradients that travel as Int8, which every rank keeps whole
	StateBytes    int         // of the optimizers that were made so far
	SnapshotBytes int         // of the copy that SaveAsync made, which is kept
	MemoryBytes   int         // of a MemoryCheckpoint, always in RAM
	VirtualBytes  int         // of sums between the micro-batches of a step, by Config.VirtualRanks, at most
	PassBytes     int         // most at once: gathered parameters, gradients, activations, scratch

	// The same bytes by place. The two need not be largest at the same time.
	MappedBytes int // most at once in files (Config.Offload.Dir)
	RAMBytes    int // most at once elsewhere

	// RAM that is needed once a few passes have run.
	ReservedBytes int // RAMBytes, and freed buffers that are kept for the next pass
	BesideBytes   int // its programs, packed operands of products, and the group's copy buffers

	Gathers    int      // all-gathers in a pass, over more than one rank
	Reduces    int      // reduce-scatters, or exchanges of blocks to be summed
	AllReduces int      // all-reduces
	Traffic    int      // bytes of parameters and gradients that one rank sends in a pass
	FLOPs      int      // arithmetic of a pass on this rank, work done twice included; of Gorgonia's operations one for each element of a result
	Schedule   []string // the operations of a pass

	Stock []StockOp // slow operations, most bytes moved first

	Pass *plan.Pass // the same as data: the cost of each operation, and the memory live meanwhile
}

// A StockOp is a slow operation. On a processor it is an operation on floats that this library has
// no kernel for. Gorgonia runs it, which allocates each result and copies it. Package op may have
// an equivalent. On a GPU it is an operation whose kernel does not use tensor cores, such as
// attention in float32 or with heads of more than 128 columns. An operation without any kernel on a
// GPU is an error of the plan.
type StockOp struct {
	Op     string // as Gorgonia writes it
	Call   string // whose module has it
	Runs   int    // how often in a pass, gradients and recomputation in backward included
	Bytes  int    // that these runs read and write
	Reason string // why it is slow, such as "attention heads of 256 columns, over 128"
}

// GroupPlan describes a flat group: the parameters of a unit, or one kind of them if it has
// several.
type GroupPlan struct {
	Name     string   // of the unit, and the kind: (frozen), (ignored), (full), (buffers), (gather bfloat16, reduce float32)
	Strategy Strategy // of its unit
	Params   int      // parameters
	Len      int      // their elements
	Bytes    int      // of the whole group, padding included
	Padding  int      // elements besides Len that belong to no parameter, if Config.Unit cuts its unit
	Frozen   bool     // it has no gradients
	Buffers  bool     // it has buffers, not parameters
	Ranks    int      // that it is cut over
	Replicas int      // of each piece
}

// Peak returns the most bytes that will be counted at once, in files and elsewhere.
func (p *Plan) Peak() int {
	return p.ShardBytes + p.ErrorBytes + p.StateBytes + p.SnapshotBytes + p.MemoryBytes + p.VirtualBytes + p.PassBytes
}

// Resident returns the bytes of RAM that training on such batches comes to take on this rank, to a
// tenth. It counts buffers, freed ones included, compiled programs, packed operands of products,
// and the copy buffers of collectives of package comm. It does not count the base of any Go
// program, about 3 MB and its code; batches; NoSync's gradients before this pass; Forwards that are
// held, and evaluations; the unused part of huge pages, if the system gives them to all processes;
// and garbage: a pass leaves next to none, but Go's heap may grow to twice the memory in use (GOGC)
// when other code does. Memory that processes share is counted by the rank that owns it, although
// the system counts it for every process that touches it.
func (p *Plan) Resident() int { return p.ReservedBytes + p.BesideBytes }

// Plan plans a training pass on a batch of the shapes of these tensors, whose contents do not
// matter: a pass that begins now, inside NoSync if the call is. It is not a collective.
func (s *Sharded) Plan(batch ...Tensor) (*Plan, error) {
	if err := s.busy.enter("Plan"); err != nil {
		return nil, err
	}
	defer s.busy.leave()
	var values []exec.Value
	var p *Plan
	err := s.checkCall("Plan")
	if err == nil {
		values, err = s.batchValues("", batch)
	}
	if err == nil {
		p, err = s.planOf(values)
	}
	if err != nil {
		return nil, fmt.Errorf("fsdp: %w", err)
	}
	return p, nil
}

// planOf returns the plan of a pass on a batch of these shapes.
func (s *session) planOf(batch []exec.Value) (*Plan, error) {
	c, err := s.engine.Compiled(s.engine.Training(s.noSync), batch)
	if err != nil {
		return nil, err
	}
	d := s.engine.Device()
	n, live := c.Plan.Program.Counts(), d.Stats().Live
	p := &Plan{
		Ranks: s.team.Size(), Compute: s.cfg.Precision.Compute, Kernels: s.cfg.kernels(), ShardBytes: s.layout.ShardBytes(), ErrorBytes: s.layout.ErrorBytes(), StateBytes: live[arena.State], SnapshotBytes: live[arena.Snapshot], MemoryBytes: s.life.kept,
		VirtualBytes: s.engine.TreeBytes(s.noSync),
		PassBytes:    c.Plan.Peak, Gathers: n.Gathers, Reduces: n.Reduces, AllReduces: n.Syncs, Traffic: c.Plan.Traffic(),
	}
	for i := range s.layout.Groups {
		g := &s.layout.Groups[i]
		gp := GroupPlan{
			Name: g.Name, Strategy: s.units[g.Unit].strategy, Params: len(g.Params), Bytes: g.ParamBytes(),
			Frozen: g.Kind.Frozen && !g.Kind.Buffer, Buffers: g.Kind.Buffer, Ranks: g.Ranks.Shards, Replicas: g.Ranks.Replicas,
		}
		for _, q := range g.Flat.Params() {
			gp.Len += q.Len()
		}
		if s.units[g.Unit].cut != "" {
			gp.Padding = g.Flat.Len() - gp.Len
			p.CutBytes += g.Excess()
		}
		p.Groups = append(p.Groups, gp)
		if !gp.Buffers {
			p.Params += gp.Len
		}
		p.CopyBytes += g.CopyBytes()
	}
	p.divide(c, d, s.engine.TreeClass(s.noSync))
	p.BesideBytes = s.engine.Beside(c) + s.staging()
	for _, op := range c.Plan.Program.Ops {
		p.Schedule = append(p.Schedule, c.Plan.Program.Text(op))
	}
	p.compute(c, d)
	lasting := plan.Memory{Shard: p.ErrorBytes + p.VirtualBytes, State: p.StateBytes}
	if s.cfg.Offload.Pinned {
		lasting.State = 0
	}
	held := make([]int, len(s.layout.Groups))
	for i := range held {
		g := &s.layout.Groups[i]
		switch {
		case !s.cfg.Offload.Pinned && !g.Kind.Frozen:
			held[i] = 2 * g.ShardBytes()
		case !s.cfg.Offload.Pinned || g.Near():
			held[i] = g.ShardBytes()
		}
		held[i] += g.CopyBytes()
		lasting.Shard += held[i]
	}
	if d.InFile(arena.Shard) {
		lasting = plan.Memory{}
		clear(held)
	}
	if s.cfg.Device == nil {
		lasting.State += p.MemoryBytes
	}
	p.Pass = c.Pass(s.layout, p.Ranks, lasting, d)
	for i, n := range held {
		p.Pass.Groups[i].Held = n
	}
	p.Pass.Threads = d.Threads()
	p.Pass.Copied = p.CopyBytes
	if p.Pass.Owned > 0 { // an update reads and writes the value and the state, and reads the gradient
		p.Pass.PerOwned = 3*(p.ShardBytes-p.CopyBytes)/(2*p.Pass.Owned) + 2*p.StateBytes/p.Pass.Owned
	}
	return p, nil
}

// compute counts the arithmetic of a pass, and lists the operations at which a device is slow.
func (p *Plan) compute(c *engine.Compiled, d engine.Device) {
	var list []StockOp
	add := func(call string, code *exec.Program) {
		for in := range code.All() {
			cost := in.Cost()
			p.FLOPs += cost.FLOPs
			if why := d.Slow(&in); why != "" {
				list = append(list, StockOp{in.Op.String(), call, 1, cost.Read + cost.Written, why})
			}
		}
	}
	for i, call := range c.Calls {
		if call.Unit == nil {
			continue
		}
		if add(c.Model.Calls[i].Name, call.Unit.Forward); call.Unit.Backward != nil {
			add(c.Model.Calls[i].Name, call.Unit.Backward)
		}
	}
	p.Stock = merged(list)
	slices.SortStableFunc(p.Stock, func(a, b StockOp) int { return b.Bytes - a.Bytes })
}

// merged adds up operations that are equal except for their counts.
func merged(list []StockOp) (sums []StockOp) {
	at := make(map[[2]string]int)
	for _, s := range list {
		i, ok := at[[2]string{s.Op, s.Call}]
		if !ok {
			at[[2]string{s.Op, s.Call}] = len(sums)
			sums = append(sums, s)
			continue
		}
		sums[i].Runs += s.Runs
		sums[i].Bytes += s.Bytes
	}
	return sums
}

// divide splits the bytes into files and RAM. Memory that was live before the pass stays live
// during it.
func (p *Plan) divide(c *engine.Compiled, d engine.Device, tree arena.Class) {
	inRAM := func(c arena.Class) bool { return !d.InFile(c) }
	p.MappedBytes = c.Plan.MostLive(d.InFile)
	p.RAMBytes, p.ReservedBytes = c.Plan.MostLive(inRAM), d.Reserve(c, inRAM)
	last := func(bytes int, class arena.Class) {
		if d.InFile(class) {
			p.MappedBytes += bytes
		} else {
			p.RAMBytes += bytes
			p.ReservedBytes += bytes
		}
	}
	last(p.ShardBytes+p.ErrorBytes+p.StateBytes+p.SnapshotBytes, arena.Shard)
	last(p.VirtualBytes, tree)
	p.RAMBytes += p.MemoryBytes
	p.ReservedBytes += p.MemoryBytes
}

// staging returns the bytes that groups keep for themselves to sum gradients. It is 0 for a plan
// without groups.
func (a *arrangement) staging() (bytes int) {
	most := make(map[comm.Group]int)
	if a.cfg.Device != nil { // NCCL carries them
		return 0
	}
	for i := range a.layout.Groups {
		if g := &a.layout.Groups[i]; !g.Kind.Frozen && a.meshes != nil {
			a.meshes[i].Staging(most, g.Sum(), g.Flat.ShardLen())
		}
	}
	for _, n := range most {
		bytes += n
	}
	return bytes
}

// String returns the plan as a table of at most 76 columns, which are 80 with the prefix of
// fsdprun. Groups, and calls of stock operations, that differ only in the numbers in their names
// share a line.
func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "parameters %d, groups %d, ranks %d", p.Params, len(p.Groups), p.Ranks)
	if p.Compute == BFloat16 || p.Compute == Float16 {
		fmt.Fprintf(&b, ", %v by %s", p.Compute, p.Kernels)
	}
	fmt.Fprintln(&b)
	writeGroups(&b, p.Groups)
	fmt.Fprint(&b, "each rank")
	for _, row := range []struct {
		bytes int
		what  string
	}{
		{p.ShardBytes, "parameters and gradients"},
		{p.CopyBytes, "of these a copy of parameters in bfloat16, for passes"},
		{p.CutBytes, "of these padding, as Config.Unit cuts units"},
		{p.ErrorBytes, "of gradients, lost in travelling and kept"},
		{p.StateBytes, "optimizer state"},
		{p.SnapshotBytes, "snapshot"},
		{p.MemoryBytes, "checkpoint in memory"},
		{p.VirtualBytes, "sums between micro-batches, at most"},
		{p.PassBytes, "buffers of a pass, at most: groups, gradients, activations"},
		{p.Peak(), "together"},
		{p.MappedBytes, "of these in files, at most, and " + bytesText(p.RAMBytes) + " elsewhere"},
		{p.Resident(), "in RAM: buffers, freed ones included, and " + bytesText(p.BesideBytes) + " beside"},
		{p.Traffic, fmt.Sprintf("sent in a pass, in %d collectives", p.Gathers+p.Reduces+p.AllReduces)},
	} {
		if row.bytes > 0 {
			fmt.Fprintf(&b, "\n%11s  %s", bytesText(row.bytes), row.what)
		}
	}
	p.writeStock(&b)
	return b.String()
}

// slow returns the slow operations. Calls whose names differ only in numbers are one.
func (p *Plan) slow() []StockOp {
	kinds := slices.Clone(p.Stock)
	for i := range kinds {
		kinds[i].Call = digits.ReplaceAllString(kinds[i].Call, "*")
	}
	return merged(kinds)
}

// writeStock writes a line for each kind of slow operations, up to a number of lines.
func (p *Plan) writeStock(w io.Writer) {
	const lines, columns = 8, 22
	kinds, reason := p.slow(), ""
	for _, s := range kinds[:min(lines, len(kinds))] {
		if s.Reason != reason {
			reason = s.Reason
			fmt.Fprintf(w, "\nslow: %s, with the bytes they move", shortened(reason, 44))
		}
		fmt.Fprintf(w, "\n%11s  %d × %s in %s", bytesText(s.Bytes), s.Runs, shortened(s.Op, columns), shortened(s.Call, columns))
	}
	if len(kinds) > lines {
		fmt.Fprintf(w, "\n  … and %d more kinds of slow operations", len(kinds)-lines)
	}
}

// shortened returns s with no more than n runes, by leaving out its middle.
func shortened(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n/2]) + "…" + string(r[len(r)-n/2+1:])
}

// digits matches the numbers in the names of groups. Groups whose names differ only there share a
// line.
var digits = regexp.MustCompile(`[0-9]+`)

// traveling matches the end of the name of a group that travels in different types than its unit,
// which is printed on a separate line.
var traveling = regexp.MustCompile(` \((frozen )?gather \w+, reduce \w+\)$`)

// writeGroups writes a line for each kind of groups, up to a number of lines.
func writeGroups(w io.Writer, groups []GroupPlan) {
	const lines, columns = 24, 26 // at most, and of a name
	var kinds []GroupPlan         // the first of each
	count := make(map[GroupPlan]int)
	alike := func(g GroupPlan) GroupPlan {
		types := traveling.FindString(g.Name)
		g.Name = digits.ReplaceAllString(strings.TrimSuffix(g.Name, types), "*") + types
		return g
	}
	for _, g := range groups {
		if count[alike(g)]++; count[alike(g)] == 1 {
			kinds = append(kinds, g)
		}
	}
	fmt.Fprintf(w, "  %-*s %12s %9s  %-12s %s\n", columns, "group", "parameters", "whole", "strategy", "ranks")
	for _, g := range kinds[:min(lines, len(kinds))] {
		name := g.Name
		if n := count[alike(g)]; n > 1 {
			name = fmt.Sprintf("%d × %s", n, alike(g).Name)
		}
		strategy, ranks := g.Strategy.String(), fmt.Sprint(g.Ranks)
		if g.Replicas > 1 {
			ranks += fmt.Sprintf(" × %d", g.Replicas)
		}
		if g.Buffers {
			strategy, ranks = "whole", "each"
		}
		types := traveling.FindString(name)
		name = shortened(strings.TrimSuffix(name, types), columns)
		fmt.Fprintf(w, "  %-*s %12d %9s  %-12s %s\n", columns, name, g.Len, bytesText(g.Bytes), strategy, ranks)
		if types != "" {
			fmt.Fprintf(w, "   %s\n", types)
		}
	}
	if len(kinds) > lines {
		fmt.Fprintf(w, "  … and %d more kinds of groups\n", len(kinds)-lines)
	}
}

// Memory counts the bytes that this rank holds now.
type Memory struct {
	Live     int // parameters, gradients, optimizer state, a MemoryCheckpoint, and buffers in use
	Mapped   int // of these, in files (Config.Offload.Dir), in RAM where it has room
	Peak     int // most live at once since the last ResetPeak, or the beginning
	Reserved int // live, and freed buffers kept for the next step
	Programs int // besides these: compiled programs and their schedules
}

// Memory returns the counts. Batches do not belong to the model and are not counted.
//
// Programs are compiled for every new shape of a batch, such as every length of a text that is
// generated, and kept: on each rank the passes used last, up to 64 MiB, and in a process the
// programs of their calls, up to 64 MiB, which its ranks share and each of them counts. The least
// recently used program is dropped first. Compiling it again when it is needed takes milliseconds
// and changes no bit.
//
// Packed operands of products, and the copy buffers of collectives (the staging of sums over TCP),
// are not counted. They grow to a fixed size in the first passes. [Plan].BesideBytes includes them,
// together with the programs of its pass.
func (s *Sharded) Memory() Memory {
	d, kept := s.engine.Device(), s.life.kept
	st, mapped := d.Stats(), 0
	for c, live := range st.Live {
		if d.InFile(arena.Class(c)) {
			mapped += live
		}
	}
	m := Memory{Live: st.Total + kept, Mapped: mapped, Peak: st.Peak + kept, Reserved: st.Reserved + kept}
	if s.life.health != closed {
		m.Programs = s.engine.ProgramBytes()
	}
	return m
}

// ResetPeak makes Memory count the peak from here on.
func (s *Sharded) ResetPeak() { s.engine.Device().ResetPeak() }

// newOperation returns a step as a profile counts it.
func newOperation(s *engine.Step) profile.Operation {
	o := profile.Operation{
		Pass: s.Pass, Kind: s.Op.Kind.String(), Absent: s.Absent, Eval: s.Eval,
		Begin: s.Begin, Took: time.Since(s.Begin), Live: s.Live,
	}
	if s.Op.Group >= 0 {
		g := &s.Model.Groups[s.Op.Group]
		o.Name, o.Shards = g.Name, cmp.Or(s.Second, g.Shards)
	}
	if s.Op.Call >= 0 {
		o.Name = s.Model.Calls[s.Op.Call].Name
	}
	return o
}

// attach gives the profile, if there is one, its model.
func (s *Sharded) attach() error {
	if s.cfg.observe.profile == nil {
		return nil
	}
	to := profile.Target{Group: s.cfg.Group, Model: s.team.Model}
	if s.cfg.Device == nil {
		_, to.Cores = s.cfg.cores()
		to.Threads = s.cfg.Threads
	}
	var err error
	if s.cfg.observe.traceDir != "" {
		to.Trace, to.Number, err = timeline.Beside(s.cfg.observe.traceDir, s.cfg.Group, s.team.Model)
	}
	if err != nil {
		return err
	}
	if to.Host, err = os.Hostname(); err != nil {
		return fmt.Errorf("Profile of Config.Observers: %w", err)
	}
	if dir := os.Getenv(launch.Stragglers); dir != "" {
		env, _, err := launch.Parse(os.Getenv)
		if err != nil {
			return err
		}
		to.Path = filepath.Join(dir, fmt.Sprintf("rank-%d.%d.%d.json", env.Rank, to.Group.Rank(), to.Model))
	}
	if err := s.cfg.observe.profile.Attach(to); err != nil {
		return fmt.Errorf("Profile of Config.Observers: %w", err)
	}
	return nil
}
