package comm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/gofsdp/gofsdp/comm/internal/limit"
	"github.com/gofsdp/gofsdp/comm/internal/session"
	"github.com/gofsdp/gofsdp/comm/internal/sharedmem"
	"github.com/gofsdp/gofsdp/comm/internal/tcp"
	"github.com/gofsdp/gofsdp/internal/launch"
	"github.com/gofsdp/gofsdp/internal/mesh"
	"github.com/gofsdp/gofsdp/internal/quorum"
	"github.com/gofsdp/gofsdp/internal/store"
)

// withDefaults returns c with defaults filled in, or an error if it is invalid.
func (c Config) withDefaults() (Config, error) {
	if c.Timeout == 0 {
		c.Timeout = limit.Default
	}
	if c.JoinTimeout == 0 {
		c.JoinTimeout = defaultJoinTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch {
	case c.Size < 1 || c.Rank < 0 || c.Rank >= c.Size:
		return c, fmt.Errorf("comm: Config.Rank is %d and Config.Size is %d: want a size of at least 1, and a rank from 0 to size-1", c.Rank, c.Size)
	case c.Size > launch.MaxSize:
		return c, fmt.Errorf("comm: Config.Size is %d, at most %d ranks are allowed", c.Size, launch.MaxSize)
	case len(c.Job) > mesh.MaxJob:
		return c, fmt.Errorf("comm: the job name has %d bytes, at most %d are allowed: shorten FSDP_JOB, or Config.Job", len(c.Job), mesh.MaxJob)
	case c.Timeout < 0 || c.JoinTimeout < 0 || c.ReplaceTimeout < 0:
		return c, fmt.Errorf("comm: Config.Timeout is %v, Config.JoinTimeout is %v and Config.ReplaceTimeout is %v: none may be negative",
			c.Timeout, c.JoinTimeout, c.ReplaceTimeout)
	case c.Members != "" && !filepath.IsAbs(c.Members):
		return c, fmt.Errorf("comm: Config.Members is %q, want an absolute path", c.Members)
	case c.Join && !filepath.IsAbs(c.members()):
		return c, fmt.Errorf("comm: Config.Join needs a directory in which the process finds the job: set Config.Members, or Config.Rendezvous to file:///directory, not %q", c.Rendezvous)
	case c.Witness != "" && !isAddress(c.Witness):
		return c, fmt.Errorf("comm: Config.Witness is %q, want host:port of at most %d bytes", c.Witness, maxWitness)
	case int(c.Transport) >= len(transportNames):
		return c, fmt.Errorf("comm: unknown Config.Transport %v", c.Transport)
	case int(c.Checksums) >= len(checksumsNames):
		return c, fmt.Errorf("comm: unknown Config.Checksums %v", c.Checksums)
	}
	return c, c.checkTrust()
}

// maxWitness is the largest number of bytes of the address of a witness, which a note to the other
// ranks has.
const maxWitness = 256

func isAddress(text string) bool {
	host, port, err := net.SplitHostPort(text)
	return err == nil && host != "" && port != "" && len(text) <= maxWitness && !strings.Contains(text, " ")
}

// Connect joins a job and returns this rank's handle of the group of all ranks, named "world". It
// returns when all ranks have joined. Closing the handle and every group split from it ends this
// process's part in the job.
func Connect(ctx context.Context, cfg Config) (Group, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	joined, err := launch.Joining(os.Getenv(launch.Joins))
	if err != nil {
		cfg.Logger.Warn("comm: cannot report to fsdprun that this rank is joining", "rank", cfg.Rank, "error", err)
	}
	ctx, j, done := startJoining(ctx, cfg)
	defer done()
	g, err := connect(ctx, cfg, j)
	if terr := joined(err); terr != nil {
		cfg.Logger.Warn("comm: cannot report the result of joining to fsdprun", "rank", cfg.Rank, "error", terr)
	}
	if err != nil {
		at := cfg.Rendezvous
		if cfg.Join {
			at = cfg.members()
		}
		return nil, fmt.Errorf("comm: rank %d of %d joining at %s: %w", cfg.Rank, cfg.Size, at, store.Advise(err))
	}
	return g, nil
}

func connect(ctx context.Context, cfg Config, j *joining) (Group, error) {
	if err := checkHost(ctx, cfg); err != nil {
		return nil, err
	}
	cfg, explain, err := cfg.withSecret()
	if err != nil {
		return nil, err
	}
	p := &place{cfg: cfg, job: cfg.Job}
	p.node, p.unable = quorum.Open(ctx, cfg.quorum())
	if cfg.Join {
		if p.unable != nil {
			return nil, p.unable
		}
		g, err := p.enter(ctx, j)
		if err != nil {
			return nil, errors.Join(explain(err), p.close())
		}
		return g, nil
	}
	if p.m.Witness.Address = cfg.Witness; cfg.Witness != "" && cfg.Rank == 0 && p.unable == nil {
		// The others get the error, too, when they join.
		finding, cancel := context.WithTimeoutCause(ctx, cfg.JoinTimeout/2, fmt.Errorf("timed out after half of %v", cfg.JoinTimeout))
		p.m.Witness, p.unfound = p.node.Find(finding, cfg.Witness)
		cancel()
	}
	meet, done, err := rendezvous(ctx, cfg, j)
	if err != nil {
		return nil, errors.Join(explain(err), p.close())
	}
	g, err := p.join(ctx, ctx, meet, j)
	// Rank 0 may close the store now that all ranks have used it.
	if err = explain(errors.Join(err, done())); err != nil {
		if g != nil {
			err = errors.Join(err, g.Close())
		}
		return nil, errors.Join(err, p.close())
	}
	return g, nil
}

// join returns the world group when all ranks have it. meeting is the context until the ranks have
// met.
func (p *place) join(ctx, meeting context.Context, meet store.Store, j *joining) (Group, error) {
	cfg := p.cfg
	s := session.New(session.Config{Rank: cfg.Rank, Size: cfg.Size, Timeout: cfg.Timeout, Summed: cfg.sumsWire()})
	s.NewGroup = choose(cfg.Transport)
	joined, err := mesh.Join(meeting, mesh.Config{
		Rank: cfg.Rank, Size: cfg.Size, Store: meet, Job: p.job, Secret: cfg.Secret, TLS: cfg.TLS,
		Listen: cfg.Listen, Host: cfg.Host, Log: j.unrelated, Handler: s, Note: p.note(),
		Joining: func(missing func() []int) { j.waitsFor("join", missing) },
	})
	if err != nil {
		return nil, err
	}
	s.Mesh = joined
	j.waitsFor("make the group", j.otherRanks)
	g, err := open(ctx, s, cfg)
	if err != nil {
		return nil, s.Abandon(err)
	}
	if err := g.Barrier(ctx); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	if err := p.take(ctx, g, s, joined); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// open makes the world group.
func open(ctx context.Context, s *session.Session, cfg Config) (Group, error) {
	if cfg.Transport != TCP {
		d, err := sharedmem.New(ctx, s)
		var none *session.NoMemory
		switch {
		case err == nil:
			s.Memory = d
		case cfg.Transport == SharedMemory || !errors.As(err, &none):
			return nil, err
		case len(none.Ranks) > 1 && none.Ranks[0] == cfg.Rank: // one of them logs it
			cfg.Logger.Warn("comm: using sockets, which are slower than shared memory", "because", none)
		}
	}
	return s.NewGroup(ctx, s.World())
}

// choose returns the function that makes the groups of a session: over shared memory if all ranks
// of the group share it, or else over sockets. With SharedMemory the second case is an error.
func choose(t Transport) func(ctx context.Context, l *session.Link) (Group, error) {
	return func(ctx context.Context, l *session.Link) (Group, error) {
		switch {
		case l.Session.Shares(l.Ranks):
			return l.Session.Memory.Group(ctx, l)
		case t == SharedMemory:
			return nil, fmt.Errorf("group %q spans several hosts, which share no memory: set FSDP_TRANSPORT, or Config.Transport, to auto or tcp", l.Name)
		}
		return tcp.New(ctx, l)
	}
}
