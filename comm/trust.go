package comm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/internal/auth"
)

// A process may join a job if it has the secret. Every job has one, so that there is one way to
// check.
//
//	given            the secret in the configuration of every rank
//	one host         the key of this user, which processes of other users cannot read
//	trusted network  a public constant

// makeSecret is the command to type if a secret is missing.
const makeSecret = "export FSDP_SECRET=$(head -c 32 /dev/urandom | base64)"

// errNoSecret is the advice of errors about jobs on several hosts.
var errNoSecret = errors.New("ranks of several hosts need a shared secret, so that no other process can join: run " + makeSecret +
	" once and set the same value on all ranks (FSDP_TRUST_NETWORK=1 instead admits every process that can connect)")

// keyDir returns the directory of this user's key. Tests replace keyDir.
var keyDir = auth.UserDir

// checkTrust returns an error if the secret of c, or an option that depends on it, is invalid.
func (c Config) checkTrust() error {
	none := len(c.Secret) == 0
	switch {
	case !none:
		if err := auth.Check(c.Secret); err != nil {
			return fmt.Errorf("comm: %w: run %s", err, makeSecret)
		}
	case c.TrustNetwork && c.TLS:
		return errors.New("comm: TLS without a secret does not prove which process is at the other end: run " + makeSecret)
	case c.TrustNetwork:
	case c.Listen != "":
		return fmt.Errorf("comm: listening on %q needs a secret: %w", c.Listen, errNoSecret)
	}
	return nil
}

// withSecret returns c with the secret of a job that was given none, and a function that explains
// errors about a different secret.
func (c Config) withSecret() (_ Config, explain func(error) error, err error) {
	explain = func(err error) error { return err }
	switch {
	case len(c.Secret) > 0:
		if auth.Guessable(c.Secret) && c.Rank == 0 {
			c.Logger.Warn("the secret of this job can be guessed: use a random one", "how", makeSecret)
		}
	case c.TrustNetwork:
		c.Secret = Secret(auth.Public)
	default:
		var file string
		if c.Secret, file, err = auth.UserKey(keyDir()); err != nil {
			return c, nil, fmt.Errorf("FSDP_SECRET is not set: %w", err)
		}
		explain = func(err error) error {
			if errors.Is(err, auth.ErrSecret) {
				return fmt.Errorf("%w (without FSDP_SECRET only ranks of user %d that can read %s can join)", err, os.Geteuid(), file)
			}
			return err
		}
	}
	return c, explain, nil
}

// Unrelated processes may connect as often as they like, but do not fill the log: the first few
// warnings about them are shown, then one in a while, which counts the hidden ones.
const (
	warnings     = 10
	warningEvery = 10 * time.Second
)

// sparing is a handler that passes on a part of its records.
type sparing struct {
	slog.Handler
	*spared
}

type spared struct {
	mu     sync.Mutex
	shown  int
	last   time.Time // one was shown
	hidden int       // since
}

// Handle passes a record on, or counts it.
func (s sparing) Handle(ctx context.Context, r slog.Record) error {
	s.mu.Lock()
	show := s.shown < warnings || r.Time.Sub(s.last) >= warningEvery
	hidden := s.hidden
	if show {
		s.shown, s.last, s.hidden = s.shown+1, r.Time, 0
	} else {
		s.hidden++
	}
	s.mu.Unlock()
	if !show {
		return nil
	}
	if hidden > 0 {
		r.AddAttrs(slog.Int("not shown before", hidden))
	}
	return s.Handler.Handle(ctx, r)
}

// WithAttrs and WithGroup count together.
func (s sparing) WithAttrs(attrs []slog.Attr) slog.Handler {
	return sparing{s.Handler.WithAttrs(attrs), s.spared}
}

func (s sparing) WithGroup(name string) slog.Handler {
	return sparing{s.Handler.WithGroup(name), s.spared}
}
