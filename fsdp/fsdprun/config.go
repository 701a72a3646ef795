package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// config is the parsed command line.
type config struct {
	program []string // and arguments
	doubt   string   // a likely mistake in the arguments, or ""

	n     int      // ranks of this host, at the first start
	min   int      // least number of ranks of all hosts at later starts; 0: all
	max   int      // largest number of ranks of this host at later starts
	nodes int      // hosts
	node  int      // number of this host
	meet  []string // host:port on hosts 0, 1, … where the hosts can meet, if there are several
	job   string   // "" for a random name

	transport, listen, timeout, joinTimeout string // for the ranks; "" if not chosen
	witness                                 string // the same
	columns                                 string // FSDP_COLUMNS of the ranks
	secretFile                              string
	tls, trustNetwork                       bool
	secret                                  []byte        // shared by several hosts
	patience                                time.Duration // how long to wait for absent hosts
	serve                                   string        // the address of a witness, which this process is; or ""

	restarts int
	replace  int
	older    bool
	grace    time.Duration
	pin      bool
	logDir   string
	traceDir string
	hashDir  string
	compare  bool // compares ranks
	show     func(rank int) bool
}

// parse parses the command line for a host with the given number of cores.
func parse(args []string, cores int, usage io.Writer) (config, error) {
	var c config
	f := flag.NewFlagSet("fsdprun", flag.ContinueOnError)
	f.SetOutput(io.Discard) // errors are printed by the caller
	n := f.String("n", "auto", "ranks on this host; auto: -max, or else one per core")
	f.IntVar(&c.min, "min", 0, "least number of ranks on all hosts after a restart\n(default: all)")
	f.IntVar(&c.max, "max", 0, "greatest number of ranks on this host after a restart\n(default -n)")
	f.IntVar(&c.nodes, "nnodes", 1, "number of hosts")
	f.IntVar(&c.node, "node-rank", 0, "this host, from 0")
	rdzv := f.String("rdzv", "", "host:port on host 0 where the hosts meet; or, so that it may be\nlost, of hosts 0, 1 and 2, or more: a:1,b:1,c:1")
	f.StringVar(&c.job, "job", "", "name of the job, the same on all hosts (default: random, or -rdzv)")
	f.StringVar(&c.secretFile, "secret-file", "", "file with the key that all hosts share\n(default: FSDP_SECRET, or random on one host)")
	f.BoolVar(&c.trustNetwork, "trust-network", false, "several hosts need no key: anyone who can reach a rank may join")
	f.BoolVar(&c.tls, "tls", false, "encrypt TCP connections of ranks and hosts")
	f.StringVar(&c.transport, "transport", "", "auto, shm or tcp")
	f.StringVar(&c.listen, "listen", "", "network interfaces or addresses on which ranks listen: a,b")
	f.StringVar(&c.timeout, "timeout", "", "time without progress after which an operation fails, such as 90s")
	f.StringVar(&c.joinTimeout, "join-timeout", "", "time that ranks and hosts wait for each other, such as 90s")
	f.IntVar(&c.restarts, "restarts", 0, "number of restarts after a failure")
	f.IntVar(&c.replace, "replace", 0, "number of ranks of this host that are started again alone,\nwhile the others call comm.Reconnect")
	f.StringVar(&c.witness, "witness", "", "host:port of a witness, the same on all hosts:\neither of two hosts may be lost then")
	f.StringVar(&c.serve, "serve-witness", "", "be a witness at host:port, until a signal ends it")
	f.BoolVar(&c.older, "older", false, "load an older checkpoint if the last one is damaged:\nlike LoadOptions.AllowOlder, if the program does not set it")
	f.DurationVar(&c.grace, "grace", 10*time.Second, "time between the signal to end and SIGKILL")
	f.BoolVar(&c.pin, "pin", false, "give each rank its own share of the cores (Linux)")
	f.StringVar(&c.logDir, "log-dir", "", "directory for rank-0.log, rank-1.log, …")
	f.StringVar(&c.hashDir, "hashes", "", "directory for hashes of the ranks' results, for fsdpdiff")
	f.StringVar(&c.traceDir, "trace", "", "directory for traces of the ranks, and "+jobTrace+" of all")
	f.BoolVar(&c.compare, "stragglers", false, "report at the end which rank or link the others waited for, and why")
	show := f.String("show", "all", "print the output of these ranks: all, none, or 0,2-3")
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(usage, "usage: fsdprun [flags] program [arguments]\n\nThe program is a binary, or a Go package or file, which is built first.\n\n")
		f.SetOutput(usage)
		f.PrintDefaults()
	}
	switch c.program = f.Args(); {
	case err != nil:
	case len(c.program) == 0 && c.serve == "":
		err = errors.New("no program")
	case len(c.program) > 0 && c.serve != "":
		err = errors.New("-serve-witness runs no program")
	}
	if err != nil {
		return c, fmt.Errorf("%w; fsdprun -h lists the flags", err)
	}
	if c.serve != "" {
		c.nodes = 2 // or more: they need a common secret
		return c, nil
	}
	c.doubt = misplaced(f)
	return c, errors.Join(c.setRanks(*n, cores), c.setHosts(*rdzv), c.setShow(*show), c.check())
}

// misplaced describes a flag that places ranks and stands behind the program, which gets it, and
// not before, or returns "".
func misplaced(f *flag.FlagSet) string {
	var before []string
	f.Visit(func(one *flag.Flag) { before = append(before, one.Name) })
	for _, arg := range f.Args()[1:] {
		name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-"), "=")
		if strings.HasPrefix(arg, "-") && slices.Contains([]string{"n", "nnodes", "node-rank", "rdzv", "replace", "restarts"}, name) && !slices.Contains(before, name) {
			return fmt.Sprintf("%s after %s goes to the program: if it is for fsdprun, put it before the program", arg, f.Arg(0))
		}
	}
	return ""
}

// setRanks sets n, min and max.
func (c *config) setRanks(n string, cores int) error {
	if n != "auto" {
		k, err := strconv.Atoi(n)
		if err != nil || k < 1 {
			return fmt.Errorf("-n %s: want a number of ranks from 1 on, or auto", n)
		}
		c.n = k
	} else if c.n = cores; c.max > 0 {
		c.n = c.max
	}
	if c.max == 0 {
		c.max = c.n
	}
	if c.min == 0 && c.nodes == 1 {
		c.min = c.n
	}
	if c.min < 0 || c.nodes == 1 && c.n < c.min || c.n > c.max {
		return fmt.Errorf("-n %d is not between -min %d and -max %d", c.n, c.min, c.max)
	}
	return nil
}

// setHosts checks the flags for several hosts.
func (c *config) setHosts(rdzv string) error {
	switch {
	case c.nodes < 1 || c.node < 0 || c.node >= c.nodes:
		return fmt.Errorf("-node-rank %d is not one of -nnodes %d hosts, which count from 0", c.node, c.nodes)
	case c.nodes == 1 && rdzv != "":
		return errors.New("-rdzv is for several hosts: give -nnodes too")
	case c.nodes == 1:
		return nil
	case rdzv == "":
		return errors.New("-rdzv: several hosts need the host:port of host 0 where they meet")
	}
	meet := strings.Split(rdzv, ",")
	for i, at := range meet {
		if host, _, err := net.SplitHostPort(at); err != nil || host == "" {
			return fmt.Errorf("-rdzv %s: not host:port: give the name of host %d and a free port, such as host%d:29500", at, i, i)
		}
	}
	switch {
	case len(meet) > c.nodes:
		return fmt.Errorf("-rdzv has %d addresses for -nnodes %d: give the addresses of the first hosts, one for each", len(meet), c.nodes)
	case len(meet) == 2:
		return errors.New("-rdzv has two addresses, of which no majority is left when one host is lost: give one, or at least three")
	case len(meet) > 1 && c.replace > 0:
		return errors.New("-rdzv with several addresses is for -restarts: with -replace give the address of host 0, which may be lost once all ranks have joined")
	}
	c.meet, c.job = meet, cmp.Or(c.job, meet[0])
	return nil
}

// short warns of a limit that ends the job when a host falls silent, or returns "".
func (c *config) short() string {
	if c.nodes == 1 || c.restarts+c.replace == 0 || c.patience >= shortestPatience {
		return ""
	}
	return fmt.Sprintf("-join-timeout %v is too short to survive a host that falls silent, which is detected after %v: give at least %v",
		c.patience, silence, shortestPatience)
}

// setShow parses a set of ranks.
func (c *config) setShow(list string) error {
	switch list {
	case "all":
		c.show = func(int) bool { return true }
		return nil
	case "none":
		c.show = func(int) bool { return false }
		return nil
	}
	type span struct{ lo, hi int }
	var spans []span
	for item := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(item, "-")
		if !isRange {
			last = first
		}
		lo, errLo := strconv.Atoi(first)
		hi, errHi := strconv.Atoi(last)
		if errLo != nil || errHi != nil || lo > hi {
			return fmt.Errorf("-show %s: want all, none or a list such as 0,2-3", list)
		}
		spans = append(spans, span{lo, hi})
	}
	c.show = func(rank int) bool {
		for _, s := range spans {
			if s.lo <= rank && rank <= s.hi {
				return true
			}
		}
		return false
	}
	return nil
}

func (c *config) check() error {
	if c.restarts < 0 || c.grace < 0 || c.replace < 0 {
		return errors.New("-restarts, -replace and -grace must not be negative")
	}
	if c.pin && !canPin {
		return errors.New("-pin: this system does not bind processes to cores")
	}
	return nil
}
