package comm

import (
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// candidate is a way to run collectives. It is started as one or more processes whose ranks connect
// to the driver's socket.
type candidate struct {
	name     string
	tcp      bool // marked if the loopback is not prepared
	maxWorld int  // for libraries that poll: 0 is no limit
	program  string
	ranks    func(world int) int       // connections to expect, nil for one per rank of the world
	variants func(op string) []string  // alternatives for op, of which the fastest counts; nil: op
	command  func(s start) []*exec.Cmd // the processes
}

// start has the arguments for starting a candidate.
type start struct {
	shop    *workshop
	program string // path of the peer program
	socket  string
	dir     string // for files of this candidate
	ranks   int    // how many to start
	max     int    // bytes of the largest tensor
}

// candidates in the order of the columns.
var candidates = []candidate{
	{name: "local", command: startLocal},
	{name: "shm", command: startOurs("-transport", "shm", "-registered")},
	{name: "shm-staged", command: startOurs("-transport", "shm")},
	{name: "tcp", tcp: true, command: startOurs("-transport", "tcp")},
	{name: "ompi-shm", program: "ompi", command: startOpenMPI("vader,self")},
	{name: "mpich-shm", program: "mpich", maxWorld: 2, command: startMPICH("posix,sysv,cma,self")},
	{name: "ompi-tcp", program: "ompi", tcp: true, command: startOpenMPI("tcp,self")},
	{name: "mpich-tcp", program: "mpich", tcp: true, maxWorld: 2, command: startMPICH("tcp,self")},
	{name: "gloo", program: "gloo", tcp: true, variants: glooVariants, command: startGloo},
	{name: "memcpy", program: "memcpy", variants: onlyAllGather, command: startMemcpy},
	{name: "memcpy-1", program: "memcpy", variants: onlyAllGather, command: startMemcpy, ranks: func(int) int { return 1 }},
}

func candidateNames() []string {
	var names []string
	for _, c := range candidates {
		names = append(names, c.name)
	}
	return names
}

// connections returns the number of ranks that will connect.
func (c *candidate) connections(world int) int {
	if c.ranks != nil {
		return c.ranks(world)
	}
	return world
}

// calls returns the names under which op is measured. There are none if the candidate has no such
// operation.
func (c *candidate) calls(op string) []string {
	if c.variants != nil {
		return c.variants(op)
	}
	return []string{op}
}

// wanted returns the candidates to measure.
func wanted(names []string) []candidate {
	if len(names) == 0 {
		return candidates
	}
	return slices.DeleteFunc(slices.Clone(candidates), func(c candidate) bool { return !slices.Contains(names, c.name) })
}

// startLocal starts one process, with all ranks as goroutines.
func startLocal(s start) []*exec.Cmd { return []*exec.Cmd{s.ours()} }

// startOurs starts one process for each rank. Together they use as many threads as the machine has
// cores.
func startOurs(how ...string) func(start) []*exec.Cmd {
	return func(s start) []*exec.Cmd {
		threads := max(1, runtime.NumCPU()/s.ranks)
		var list []*exec.Cmd
		for rank := range s.ranks {
			cmd := s.ours(append([]string{"-rank", strconv.Itoa(rank), "-rendezvous", "file://" + s.dir}, how...)...)
			cmd.Env = append(cmd.Environ(), fmt.Sprintf("GOMAXPROCS=%d", threads))
			list = append(list, cmd)
		}
		return list
	}
}

// ours is this program as one or all ranks of a world.
func (s start) ours(how ...string) *exec.Cmd {
	args := []string{RankCommand, "-socket", s.socket, "-size", strconv.Itoa(s.ranks), "-max", strconv.Itoa(s.max)}
	return exec.Command(s.shop.self, append(args, how...)...)
}

// startOpenMPI uses the ob1 layer over the given byte transfer layers. Its ranks are not bound to
// cores, like ours.
func startOpenMPI(btl string) func(start) []*exec.Cmd {
	return func(s start) []*exec.Cmd {
		cmd := exec.Command(s.shop.programs["ompirun"], "-np", strconv.Itoa(s.ranks),
			"--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
			"--mca", "pml", "ob1", "--mca", "btl", btl, "--mca", "btl_tcp_if_include", "lo", "--mca", "oob_tcp_if_include", "lo",
			"--mca", "orte_tmpdir_base", s.dir, "--mca", "btl_vader_backing_directory", s.shop.shared,
			s.program, s.socket, strconv.Itoa(s.max))
		return []*exec.Cmd{cmd}
	}
}

// startMPICH uses the given transports of UCX.
func startMPICH(transports string) func(start) []*exec.Cmd {
	return func(s start) []*exec.Cmd {
		cmd := exec.Command(s.shop.programs["mpichrun"], "-launcher", "fork", "-n", strconv.Itoa(s.ranks),
			s.program, s.socket, strconv.Itoa(s.max))
		cmd.Env = append(cmd.Environ(), "UCX_TLS="+transports, "UCX_LOG_LEVEL=error")
		if strings.HasPrefix(transports, "tcp") {
			// Otherwise it would use shared memory.
			cmd.Env = append(cmd.Env, "UCX_NET_DEVICES=lo", "MPIR_CVAR_NOLOCAL=1")
		}
		return []*exec.Cmd{cmd}
	}
}

func startGloo(s start) []*exec.Cmd {
	var list []*exec.Cmd
	for rank := range s.ranks {
		list = append(list, exec.Command(s.program, s.socket, strconv.Itoa(s.max), strconv.Itoa(rank), strconv.Itoa(s.ranks), s.dir))
	}
	return list
}

// glooVariants are Gloo's algorithms for an all-reduce. Its gather is not measured, and neither is
// its broadcast from changing roots.
func glooVariants(op string) []string {
	switch op {
	case "all-reduce", "flag":
		return []string{op + "/ring", op + "/bcube", op + "/hd"}
	case "gather", "gather" + inTurns, "broadcast" + inTurns:
		return nil
	}
	return []string{op}
}

func startMemcpy(s start) []*exec.Cmd {
	var list []*exec.Cmd
	for rank := range s.ranks {
		list = append(list, exec.Command(s.program, s.socket, strconv.Itoa(s.max), strconv.Itoa(rank)))
	}
	return list
}

// onlyAllGather is for memcpy, which writes the bytes that an all-gather writes on every rank.
func onlyAllGather(op string) []string {
	if op == "all-gather" {
		return []string{op}
	}
	return nil
}
