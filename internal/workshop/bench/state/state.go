// Package state measures the handling of training state. It starts processes as ranks. They
// consolidate AdamW's state, on rank 0 and on every rank, by broadcasts and by the library, and
// compare the times with the transport and a plain copy. They also write and read checkpoints, and
// compare them with plain files, in a directory that is removed afterwards.
//
//	bench state [-models dense,moe,30M,300M] [-ranks 2,4] [-rounds 7] [-tcp] [-dir directory] [-torch python]
//
// Memory is the rise of the peak of resident memory. Dense and moe need 4 GB of memory, with
// PyTorch in the run moe needs 9. 300M needs 15 on 2 ranks, and 9 GB in the directory; on 4 ranks
// it needs more than 23, since every rank has a result and the earlier one, whose memory Into
// takes.
//
// # Thousands of tensors
//
// Dense and moe are the models of the request (FairScale #595): the blocks of a model of 2.2
// billion parameters, and blocks of 32 experts, narrower so that they fit. They are compared with
// one broadcast per tensor, each part from its rank directly to its place, and with one broadcast
// per rank. FairScale used the latter before, with additional time for pickling.
//
// Two cores of an AMD EPYC with AVX-512 in a virtual machine that others used, too (2026-11-22,
// load 20 to 33, real-time priority, shared memory, medians of 5 rounds, in turns; most lie between
// 0.8 and 1.5 of the median). The numbers in brackets are speeds relative to one broadcast per
// tensor by this library, with the result on the same ranks:
//
//	seconds                        dense, 2 ranks   dense, 4 ranks   moe, 2 ranks    moe, 4 ranks
//	tensors of state, MB           1,056, 278       1,056, 278       6,528, 463      6,528, 463
//	rank 0
//	  broadcast a tensor           0.230            0.246            0.381           0.401
//	  broadcast a rank             0.322 (0.62)     0.408 (0.60)     0.518 (0.64)    0.731 (0.52)
//	  OptimStateDict               0.141 (1.35)     0.148 (1.63)     0.238 (1.38)    0.299 (1.20)
//	  the same, Into               0.033 (5.75)     0.044 (6.10)     0.073 (4.05)    0.108 (3.55)
//	every rank
//	  broadcast a tensor           0.310            0.540            0.481           1.085
//	  OptimStateDict               0.160 (1.99)     0.341 (1.55)     0.334 (1.42)    0.803 (1.63)
//	  the same, Into               0.042 (7.27)     0.096 (5.77)     0.092 (5.21)    0.237 (7.44)
//	transport, into new memory     0.150 (1.32)     0.158 (1.56)     0.240 (1.32)    0.273 (1.53)
//	transport, into warm memory    0.020 (9.73)     0.024 (10.5)     0.034 (10.4)    0.044 (9.43)
//	memcpy into new memory         0.143 (1.53)     0.164 (1.74)     0.250 (1.28)    0.282 (1.58)
//	memcpy into warm memory        0.016 (13.6)     0.018 (14.2)     0.028 (10.7)    0.030 (13.6)
//
// Ratios are medians over single rounds. 10× these broadcasts is not reached, and cannot be: a
// broadcast takes about 20 µs over shared memory and puts every part directly in its place, and the
// other ranks discard the parts. A memcpy of as many bytes into new memory, on one rank and without
// communication, is 1.3 to 1.7× as fast, and 1.2 to 1.4× on the same machine without other load.
// Only a memcpy into mapped memory is 11 to 14× as fast (10 to 12×). There OptimStateDict reaches
// 0.4 to 0.6 of the transport's speed: copies below 1 MiB go through the caches, the experts' 147
// KB do so twice, and 6,528 names are looked up.
//
// The next table has the broadcasts of PyTorch (2.15, gloo over loopback) in the same turns: the
// same parts, directly to the same places, in processes whose malloc keeps its memory, so that
// PyTorch does not wait for new pages, unlike OptimStateDict.
// ZeroRedundancyOptimizer.consolidate_state_dict divides the parameters itself, and broadcasts the
// pickled state of each rank. The numbers in brackets are the times relative to OptimStateDict,
// into new memory and with Into:
//
//	seconds                        dense, 2 ranks      dense, 4 ranks      moe, 2 ranks        moe, 4 ranks
//	rank 0: a tensor               0.272 (2.1, 8.7)    0.686 (4.5, 15.4)   1.146 (4.9, 15.8)   3.141 (10.2, 25.0)
//	every rank: a tensor           0.314 (2.1, 7.2)    0.583 (1.7, 6.3)    1.240 (3.3, 12.3)   3.042 (3.6, 14.0)
//	rank 0: ZeRO                   10.1 (68, 290)      18.7 (124, 423)     14.9 (65, 214)      23.3 (79, 231)
//
// So OptimStateDict is 10× as fast as PyTorch's broadcasts per tensor on rank 0 for the mixture of
// experts on 4 ranks, and with Into also on 2 ranks and for dense on 4 ranks, but not for dense on
// 2 ranks. It is at least 65× as fast as ZeRO's everywhere.
//
// Over TCP, before small tensors were looked up faster, moe on 4 ranks: 2.07 s by a broadcast a
// tensor, 1.69 by one a rank, 0.66 (3.13) by OptimStateDict; on every rank 4.02, and 2.51 (1.53),
// or 1.43 (2.91) with Into. On 2 ranks 1.04, 1.73, 0.98 (1.12); 1.32, 1.46 (0.99), 0.66 (1.99).
//
// # Larger tensors
//
// On the same machine (2026-11-21): processes, shared memory, new memory for the result.
// "Broadcast" is one broadcast per rank, as in PyTorch's ZeroRedundancyOptimizer, in Go. PyTorch's
// own figures are from another day on the same kind of machine, and a conversion in Python takes 83
// to 88 % of its broadcast. At that time small tensors were not sent together:
//
//	seconds (MB/s)         30M, 2 ranks    30M, 4 ranks    300M, 2 ranks   300M, 4 ranks
//	broadcast              0.242 (1044)    0.295 (855)     4.32 (559)      4.36 (555)      the result on rank 0
//	all-gather             0.185 (1366)    0.306 (823)     6.66 (363)      9.07 (267)      the result on every rank
//	gather to rank 0       0.116 (2170)    0.118 (2129)    1.97 (1231)     1.52 (1590)     other ranks need no memory
//	copy into new memory   0.112           0.116           1.83            1.75
//	PyTorch: broadcast     2.88            4.28            29.6            44.0
//	PyTorch: all-gather    0.218           0.435           3.56            6.34            the result on rank 0
//	PyTorch: to rank 0     0.117           0.145           1.83            2.16
//
// The all-gather of 300M on 4 ranks fills 4× the memory of the broadcast.
//
// # Checkpoints
//
// Saving with fsync ran at 0.8 to 1.0 of a plain write of the same bytes, loading from cached files
// with all checksums at 0.5 to 0.7 of a plain read, and SaveAsync kept the training waiting for 20
// ms of 378 MB.
package state

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/comm"
)

// RankCommand is the first argument of a process that is a rank: it calls Serve with the second
// argument.
const RankCommand = "state-rank"

// stateModel is a stack of transformer blocks, whose parameters and AdamW state are moved and never
// trained. With experts each block has this number of two-layer networks in place of one.
type stateModel struct {
	name                 string
	layers, dim, experts int
	ranksOnly            bool // no checkpoints are measured
}

// dense and moe have the tensors of large models, and are narrow enough for one machine: the 44
// blocks of a model of 2.2 billion parameters, which are 2,048 wide, and 24 blocks of 32 experts.
var stateModels = []stateModel{
	{"0.1M", 2, 64, 1, false},
	{"0.1M-moe", 2, 64, 2, true},
	{"dense", 44, 256, 1, true},
	{"moe", 24, 96, 32, true},
	{"30M", 10, 512, 1, false},
	{"300M", 24, 1024, 1, false},
}

// params returns the number of parameters: products and norms with their biases.
func (m stateModel) params() int {
	return m.layers * (4*m.dim*m.dim + 8*m.dim + m.experts*(8*m.dim*m.dim+5*m.dim))
}

// tensors returns the number of tensors.
func (m stateModel) tensors() int { return m.layers * (8 + 4*m.experts) }

func stateModelOf(name string) (stateModel, error) {
	i := slices.IndexFunc(stateModels, func(m stateModel) bool { return m.name == name })
	if i < 0 {
		return stateModel{}, fmt.Errorf("unknown model %q", name)
	}
	return stateModels[i], nil
}

// stateOptions are the options of a measurement.
type stateOptions struct {
	models []string
	ranks  []int
	rounds int
	dir    string // directory for checkpoints, which are removed; "" for the temporary directory
	tcp    bool   // ranks use TCP, not shared memory
	torch  string // python with PyTorch, "" for none
}

// stateJob is the argument of a rank: the ranks of one job measure one model, and free everything
// by ending.
type stateJob struct {
	Model      string
	Rank, Size int
	Rounds     int
	Transport  comm.Transport
	Dir        string // empty at first: directory in which ranks meet, and write
	Torch      string
}

// Run measures as args say, the command line after the subcommand, and prints tables to w.
func Run(ctx context.Context, w io.Writer, args []string) (err error) {
	f := flag.NewFlagSet("bench state", flag.ContinueOnError)
	models := f.String("models", "dense,moe,30M,300M", "comma-separated models")
	ranks := f.String("ranks", "2,4", "comma-separated numbers of processes")
	var o stateOptions
	f.IntVar(&o.rounds, "rounds", 7, "interleaved rounds")
	f.BoolVar(&o.tcp, "tcp", false, "let the processes talk over TCP, not shared memory")
	f.StringVar(&o.torch, "torch", "", "`python` with PyTorch, whose broadcasts and ZeroRedundancyOptimizer are measured, too")
	f.StringVar(&o.dir, "dir", "", "directory for the checkpoints (default: the directory for temporary files)")
	if err := f.Parse(args); err != nil {
		return err
	}
	o.models = strings.Split(*models, ",")
	if o.ranks, err = numbers(*ranks); err != nil {
		return err
	}
	return states(ctx, w, o)
}

// states starts for each model and number of ranks a job of processes, one after the other. Their
// rank 0 prints to w.
func states(ctx context.Context, w io.Writer, o stateOptions) error {
	if o.rounds < 1 {
		return fmt.Errorf("%d rounds: there must be at least one", o.rounds)
	}
	for _, name := range o.models {
		if _, err := stateModelOf(name); err != nil {
			return err
		}
	}
	for _, ranks := range o.ranks {
		if ranks < 2 || ranks > 64 {
			return fmt.Errorf("%d ranks: want 2 to 64", ranks)
		}
	}
	for _, name := range o.models {
		for _, ranks := range o.ranks {
			if err := stateRun(ctx, w, o, stateJob{Model: name, Size: ranks, Rounds: o.rounds, Torch: o.torch}); err != nil {
				return fmt.Errorf("%s on %d ranks: %w", name, ranks, err)
			}
		}
	}
	return nil
}

// stateRun runs a job in its own directory.
func stateRun(ctx context.Context, w io.Writer, o stateOptions, job stateJob) (err error) {
	dir, err := os.MkdirTemp(o.dir, "bench-state-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if job.Dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	job.Transport = comm.SharedMemory
	if o.tcp {
		job.Transport = comm.TCP
	}
	return stateProcesses(ctx, w, job)
}

// stateGrace is the time in which ranks must end after one has failed. That rank informs the
// others, unless they have not met yet.
const stateGrace = 10 * time.Second

// stateProcesses runs the ranks of a job and returns the errors of all.
func stateProcesses(ctx context.Context, w io.Writer, job stateJob) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, job.Size)
	var running sync.WaitGroup
	for rank := range errs {
		j := job
		j.Rank = rank
		running.Go(func() {
			cmd, err := j.command(ctx, self, w)
			if err == nil {
				err = cmd.Run()
			}
			if err != nil {
				errs[rank] = fmt.Errorf("rank %d: %w", rank, err)
				time.AfterFunc(stateGrace, cancel)
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// command returns the process of a rank. It has its share of the cores, as with fsdprun.
func (j stateJob) command(ctx context.Context, self string, w io.Writer) (*exec.Cmd, error) {
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, RankCommand, string(text))
	cmd.Env = append(cmd.Environ(), fmt.Sprintf("GOMAXPROCS=%d", max(1, runtime.NumCPU()/j.Size)))
	cmd.Stderr = os.Stderr
	if j.Rank == 0 {
		cmd.Stdout = w
	}
	return cmd, nil
}

// numbers reads a list such as "2,4".
func numbers(text string) (list []int, err error) {
	for _, word := range strings.Split(text, ",") {
		n, err := strconv.Atoi(word)
		if err != nil {
			return nil, fmt.Errorf("%q is not a list of numbers", text)
		}
		list = append(list, n)
	}
	return list, nil
}
