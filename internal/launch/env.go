package launch

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Env is the place of a process in a job. The zero value of a setting means that it is
// not set.
type Env struct {
	Source string // the launcher: "torchrun", "Slurm", …; "" if there is none

	Rank, Size int // 0 <= Rank < Size

	// The place on this host: 0 <= LocalRank < LocalSize, or -1 and 0 if unknown.
	LocalRank, LocalSize int
	// The place of this host: 0 <= NodeRank < Nodes, or -1 and 0 if unknown.
	NodeRank, Nodes int

	Addr    string // host:port where rank 0 serves the rendezvous; "" if unknown
	Dir     string // directory of a rendezvous by files, instead of Addr
	Job     string // a name that differs from other jobs, the same on all ranks; "" if unknown
	Restart int    // how many times the job was started before

	Secret      []byte        // the shared key, at least [MinSecret] bytes
	SecretFile  string        // the file that holds it, for [ReadSecret]
	Listen      string        // interface or address
	Timeout     time.Duration // of no progress
	JoinTimeout time.Duration // of ranks that do not come
	Transport   string        // "auto", "shm", "tcp"
	Checksums   string        // "auto", "off", "on"

	Members string        // directory in which ranks record their addresses for processes that join
	Witness string        // host:port of a process that votes on the ranks of the next group
	Replace time.Duration // that ranks wait for processes in the place of lost ones

	Join         bool // this process joins a running job
	TLS          bool // encrypt connections
	TrustNetwork bool // need no secret between hosts
}

// MaxSize is the largest number of ranks of a job. Collectives number their rounds by ranks.
const MaxSize = 1 << 14

// Parse reads the environment. It returns false, with the settings only, if no launcher
// has set variables. An error names the variables concerned.
func Parse(getenv func(string) string) (Env, bool, error) {
	e, err := find(getenv)
	found := e.Source != ""
	if err == nil {
		err = settings(&vars{get: getenv}, &e)
	}
	if err != nil {
		return Env{}, false, fmt.Errorf("launch: %w", err)
	}
	return e, found, nil
}

// halfError says that a launcher set rank or size, but not both. Another launcher may set
// both.
type halfError struct{ set, missing string }

func (e *halfError) Error() string {
	return e.set + " is set, but " + e.missing + " is not: set both, or neither"
}

// find returns the Env of the first launcher that sets rank and size, or an Env without
// Source.
func find(getenv func(string) string) (Env, error) {
	var half error
	for _, l := range launchers {
		v := &vars{get: getenv}
		e, err := l.read(v)
		if err == nil {
			err = v.err
		}
		if errors.As(err, new(*halfError)) {
			if half == nil {
				half = fmt.Errorf("%s: %w", l.name, err)
			}
			continue
		}
		if err == nil && e != nil {
			err = e.check()
		}
		if err != nil {
			return Env{}, fmt.Errorf("%s: %w (%s)", l.name, err, strings.Join(v.read, " "))
		}
		if e != nil {
			e.Source = l.name
			e.Addr = e.loopback()
			if err := v.compare(e, v.pair); err != nil {
				return Env{}, err
			}
			return *e, nil
		}
	}
	return Env{LocalRank: -1, NodeRank: -1}, half
}

// check tests the conditions that hold for every launcher.
func (e *Env) check() error {
	if e.Size < 1 || e.Size > MaxSize {
		return fmt.Errorf("the number of ranks is %d: must be 1 to %d", e.Size, MaxSize)
	}
	if e.Rank >= e.Size {
		return fmt.Errorf("rank %d is not below the number of ranks, %d: ranks are 0 to %d", e.Rank, e.Size, e.Size-1)
	}
	if e.LocalSize > e.Size {
		return fmt.Errorf("%d ranks on this host are more than all %d ranks", e.LocalSize, e.Size)
	}
	if e.LocalSize > 0 && e.LocalRank >= e.LocalSize {
		return fmt.Errorf("local rank %d is not below the number of ranks on this host, %d", e.LocalRank, e.LocalSize)
	}
	if e.Nodes > e.Size {
		return fmt.Errorf("%d hosts are more than the %d ranks", e.Nodes, e.Size)
	}
	if e.Nodes > 0 && e.NodeRank >= e.Nodes {
		return fmt.Errorf("host %d is not below the number of hosts, %d", e.NodeRank, e.Nodes)
	}
	return nil
}

// loopback returns Addr. If all ranks are on this host, the host part is loopback, which
// other hosts cannot reach: launchers set the name of the host.
func (e *Env) loopback() string {
	_, port, err := net.SplitHostPort(e.Addr)
	if e.Nodes != 1 || err != nil {
		return e.Addr
	}
	return net.JoinHostPort("127.0.0.1", port)
}

// vars reads variables, and records their names for errors.
type vars struct {
	get  func(string) string
	read []string // "NAME=value" of those that were set
	pair []string // and of these, rank and size
	err  error    // the first malformed one
}

// fail keeps the first error.
func (v *vars) fail(format string, args ...any) {
	if v.err == nil {
		v.err = fmt.Errorf(format, args...)
	}
}

// text returns the value of the first variable that is set, or "" if none is.
func (v *vars) text(names ...string) string {
	for _, name := range names {
		if s := v.get(name); s != "" {
			if pair := name + "=" + s; !slices.Contains(v.read, pair) {
				v.read = append(v.read, pair)
			}
			return s
		}
	}
	return ""
}

// int returns the first of the variables that is set, which must be a whole number
// without sign. If none is set, it returns unset.
func (v *vars) int(unset int, names ...string) int {
	for _, name := range names {
		s := v.text(name)
		if s == "" {
			continue
		}
		n, err := strconv.ParseUint(s, 10, 31)
		if err != nil {
			v.fail("%s=%q is not a number", name, s)
			return unset
		}
		return int(n)
	}
	return unset
}

// world reads rank and size, and the place on this host if its variables are named. It
// returns nil if neither rank nor size is set.
func (v *vars) world(rank, size string) (*Env, error) {
	r, s := v.text(rank), v.text(size)
	v.pair = []string{rank + "=" + r, size + "=" + s}
	switch {
	case r == "" && s == "":
		return nil, nil
	case s == "":
		return nil, &halfError{rank + "=" + r, size}
	case r == "":
		return nil, &halfError{size + "=" + s, rank}
	}
	return &Env{Rank: v.int(0, rank), Size: v.int(0, size), LocalRank: -1, NodeRank: -1}, nil
}

// local sets the place on this host, if rank and size are both set.
func (v *vars) local(e *Env, rank, size int) {
	if rank >= 0 && size > 0 {
		e.LocalRank, e.LocalSize = rank, size
	}
}

// address returns where rank 0 serves: the launcher's host and port ("" and 0 if it sets
// none), unless the user's variables override them.
func (v *vars) address(host string, port int) string {
	if s := v.text("MASTER_ADDR", "PET_MASTER_ADDR"); s != "" {
		host = s
		if port == 0 {
			port = DefaultPort
		}
	}
	port = v.int(port, "MASTER_PORT", "PET_MASTER_PORT")
	if host == "" {
		return ""
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.ContainsAny(host, " \t\n/[]") || strings.Contains(host, ":") && net.ParseIP(hostOnly(host)) == nil {
		v.fail("%q is not a host name or address", host)
	}
	if port < 1 || port > 65535 {
		v.fail("%d is not a port", port)
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// hostOnly cuts the zone off an IPv6 address.
func hostOnly(addr string) string { host, _, _ := strings.Cut(addr, "%"); return host }

// DefaultPort is the port of the rendezvous if the address has none: PyTorch's.
const DefaultPort = 29500

// jobPort picks a port on which all ranks of a job agree without communication. It is
// below the range from which Linux takes ports for outgoing connections, which begins at
// 32768.
func jobPort(hash uint32) int { return 15000 + int(hash%15000) }
