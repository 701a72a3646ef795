package main

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gofsdp/gofsdp/internal/auth"
	"github.com/gofsdp/gofsdp/internal/launch"
)

// start is one start of the ranks of a host.
type start struct {
	Count       int    // number of earlier starts
	Failures    int    // before this start
	Job         string // unique name
	Host, Port  string // where rank 0 serves
	Listen      string // address on which other hosts reach the ranks of this host, unless -listen names one
	First       int    // first rank of this host
	Ranks       int    // number of ranks of this host
	Size        int    // number of ranks of all hosts
	Node, Nodes int    // number of this host, and number of hosts

	Late    bool              // the ranks join ranks that run
	Members map[string][]byte // with Late: the files by which they find these, by name
}

// owned are the variables that an outer launcher may have set and that would contradict the
// variables of fsdprun.
var owned = []string{
	"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE",
	"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE",
	"FSDP_RENDEZVOUS", launch.Members,
}

// rankEnviron returns the environment of local rank i. base has a secret and the settings of the
// flags.
func rankEnviron(base []string, s start, i, cores int) []string {
	env := slices.DeleteFunc(slices.Clone(base), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.Contains(owned, name)
	})
	if lookup(base, "GOMAXPROCS") == "" {
		env = append(env, "GOMAXPROCS="+strconv.Itoa(max(1, cores/s.Ranks)))
	}
	if s.Listen != "" && lookup(base, "FSDP_LISTEN") == "" {
		env = append(env, "FSDP_LISTEN="+s.Listen)
	}
	return append(env,
		"RANK="+strconv.Itoa(s.First+i),
		"WORLD_SIZE="+strconv.Itoa(s.Size),
		"LOCAL_RANK="+strconv.Itoa(i),
		"LOCAL_WORLD_SIZE="+strconv.Itoa(s.Ranks),
		"NODE_RANK="+strconv.Itoa(s.Node),
		"GROUP_RANK="+strconv.Itoa(s.Node),
		"GROUP_WORLD_SIZE="+strconv.Itoa(s.Nodes),
		"MASTER_ADDR="+s.Host,
		"MASTER_PORT="+s.Port,
		"TORCHELASTIC_RUN_ID="+s.Job,
		"TORCHELASTIC_RESTART_COUNT="+strconv.Itoa(s.Count),
	)
}

// settings returns environ with the flags and a secret. Even with an error it has set the fields
// that [launcher.giveUp] needs, unless the error is about them.
func (c *config) settings(environ []string) ([]string, error) {
	env := slices.Clone(environ)
	set := func(name, value string) {
		env = slices.DeleteFunc(env, func(pair string) bool { return strings.HasPrefix(pair, name+"=") })
		if value != "" {
			env = append(env, name+"="+value)
		}
	}
	for name, value := range map[string]string{
		"FSDP_TRANSPORT": c.transport, "FSDP_LISTEN": c.listen, "FSDP_TIMEOUT": c.timeout, "FSDP_JOIN_TIMEOUT": c.joinTimeout,
		"FSDP_TLS": variable(c.tls), "FSDP_TRUST_NETWORK": variable(c.trustNetwork),
		launch.AllowOlder: variable(c.older), launch.Witness: c.witness,
	} {
		if value != "" {
			set(name, value)
		}
	}
	set("FSDP_COLUMNS", c.columns)
	for name, dir := range map[string]string{launch.Trace: c.traceDir, launch.Hashes: c.hashDir} {
		if dir == "" {
			continue
		}
		path, err := filepath.Abs(dir)
		if err != nil {
			return nil, err
		}
		set(name, path)
	}
	if c.secretFile != "" {
		path, err := filepath.Abs(c.secretFile)
		if err != nil {
			return nil, err
		}
		set("FSDP_SECRET", "")
		set("FSDP_SECRET_FILE", path)
	}
	ranks, wrong := c.probe(env)
	if wrong != nil {
		var err error
		if ranks, err = c.probe(slices.DeleteFunc(slices.Clone(env), distrusted)); err != nil {
			return nil, wrong
		}
	}
	var err error
	c.tls, c.patience = ranks.TLS, cmp.Or(ranks.JoinTimeout, defaultPatience)
	switch c.secret = ranks.Secret; {
	case ranks.SecretFile != "":
		if c.secret, _, err = launch.ReadSecret(ranks.SecretFile); err != nil {
			return nil, fmt.Errorf("secret in %s: %w: "+makeKey+" makes one", ranks.SecretFile, err)
		}
	case ranks.Secret != nil:
	case c.nodes > 1 && !ranks.TrustNetwork:
		return nil, errors.New("several hosts need a common secret: " + makeKey + " once, " +
			"copy the file to each host, and give -secret-file key (with -trust-network instead, anyone who can reach a rank may join)")
	case c.nodes == 1:
		set("FSDP_SECRET", random(32))
	default: // the network is trusted
		c.secret = []byte(auth.Public)
	}
	return env, wrong
}

// distrusted reports whether a variable is not one that the connection to host 0 needs.
func distrusted(pair string) bool {
	name, _, _ := strings.Cut(pair, "=")
	return !slices.Contains([]string{"FSDP_SECRET", "FSDP_SECRET_FILE", "FSDP_TLS", "FSDP_TRUST_NETWORK"}, name)
}

// probe parses env as the ranks will, to get one error now instead of one from each of them.
func (c *config) probe(env []string) (launch.Env, error) {
	probe := rankEnviron(env, start{Job: "probe", Host: "127.0.0.1", Port: "1", First: c.node, Ranks: 1, Size: c.nodes, Node: c.node, Nodes: c.nodes}, 0, 1)
	ranks, _, err := launch.Parse(func(name string) string { return lookup(probe, name) })
	if above := (*launch.ContradictionError)(nil); errors.As(err, &above) {
		launcher, size, unset := above.Outer()
		err = fmt.Errorf("%s has started %d processes, and without -nnodes each of them runs a separate job: "+
			"give -nnodes, -node-rank and -rdzv, or unset %s if this is intended or the variable is left over", launcher, size, unset)
	}
	return ranks, err
}

// variable returns the value of a variable that is set if on.
func variable(on bool) string {
	if on {
		return "1"
	}
	return ""
}

// lookup returns the value of a variable, or "" if it is not set. The last assignment counts.
func lookup(env []string, name string) string {
	for _, pair := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return ""
}

// random returns n random bytes in hex.
func random(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// makeKey is a command that makes a secret.
const makeKey = "(umask 077; head -c 32 /dev/urandom | base64 > key)"
