package comm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"

	"github.com/gofsdp/gofsdp/internal/auth"
	"github.com/gofsdp/gofsdp/internal/store"
)

// The schemes of [Config.Rendezvous].
const (
	tcpScheme  = "tcp://"
	fileScheme = "file://"
)

// rendezvous opens the store where the ranks meet. Rank 0 serves it, unless it is
// a directory. The caller calls done when all ranks have met.
func rendezvous(ctx context.Context, cfg Config, j *joining) (meet store.Store, done func() error, err error) {
	// The size of the job is compared later, when the ranks join the mesh: then
	// all of them get the error.
	sc := store.Config{Job: cfg.Job, Secret: cfg.Secret, Rank: cfg.Rank, Log: j.note}
	if dir, ok := strings.CutPrefix(cfg.Rendezvous, fileScheme); ok && filepath.IsAbs(dir) {
		meet, err = store.Dir(dir, sc)
		if err != nil {
			return nil, nil, err
		}
		return meet, meet.Close, nil
	}
	addr, ok := strings.CutPrefix(cfg.Rendezvous, tcpScheme)
	if !ok {
		return nil, nil, fmt.Errorf("rendezvous %q is invalid, want tcp://host:port or file:///directory", cfg.Rendezvous)
	}
	server, client := sc, sc
	server.Log = func(err error) { j.note(err); j.unrelated.Warn("rendezvous", "error", err) }
	server.Fail = func(err error) { j.fail(fmt.Errorf("rank 0 cannot accept connections: %w", err)) }
	if cfg.TLS {
		if server.TLS, client.TLS, err = auth.TLS(); err != nil {
			return nil, nil, err
		}
	}
	var serving *store.Server
	if cfg.Rank == 0 {
		if serving, err = store.Listen(ctx, addr, server); err != nil {
			return nil, nil, err
		}
	}
	j.waitsFor("serve the rendezvous", func() []int { return []int{0} })
	if meet, err = store.Dial(ctx, addr, client); err != nil {
		if serving != nil {
			err = errors.Join(err, serving.Close())
		}
		return nil, nil, err
	}
	return meet, func() error {
		err := meet.Close()
		if serving != nil {
			err = errors.Join(err, serving.Close())
		}
		return err
	}, nil
}

// checkHost ensures that a rank that listens on loopback only meets the others
// there. Elsewhere a name need not exist yet: the rank that dials tries again.
func checkHost(ctx context.Context, cfg Config) error {
	addr, tcp := strings.CutPrefix(cfg.Rendezvous, tcpScheme)
	if !tcp || cfg.Listen != "" {
		return nil
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("rendezvous: %w", err)
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return fmt.Errorf("rendezvous: %w", err)
	}
	for _, ip := range ips {
		if !ip.Unmap().IsLoopback() {
			err := fmt.Errorf("rendezvous %s is not on this host's loopback: set FSDP_LISTEN, or Config.Listen, to the interface to listen on", addr)
			if len(cfg.Secret) == 0 && !cfg.TrustNetwork {
				err = fmt.Errorf("%w; %w", err, errNoSecret)
			}
			return err
		}
	}
	return nil
}
