package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// The limits of a store.
const (
	MaxKey   = 256      // bytes of a key, which has at least one
	MaxValue = 64 << 10 // bytes of a value
	MaxTotal = 64 << 20 // bytes of all keys and values of a server
)

// Errors that callers may test for. Errors of package auth occur as well, and the cause of an ended
// context.
var (
	ErrClosed = errors.New("store is closed")
	ErrLost   = errors.New("connection to the store lost")
	ErrLimit  = errors.New("a limit of the store is exceeded")
)

// Store is a small key-value store where the ranks of a job meet. A stored value does not change.
// Keys are bytes, not paths; by convention parts are separated by slashes. All methods may be
// called concurrently. Values belong to the caller, before and after. A Claim that ends with an
// error may have happened or not.
type Store interface {
	// Get waits until key exists or ctx ends.
	Get(ctx context.Context, key string) ([]byte, error)
	// Claim stores value under key unless there is one, and returns the current one. If the
	// caller's value is unique, such as its address, the result shows whether the caller's claim
	// succeeded.
	Claim(ctx context.Context, key string, value []byte) (holder []byte, err error)
	// Close releases the store on this side; stored values remain. Calls that wait return
	// ErrClosed.
	Close() error
}

// Config identifies this side, and the sides that it trusts.
type Config struct {
	Job        string      // the run of the program, attempt included; all sides name the same
	Rank, Size int         // of this process; two sides that both state a Size must agree on it
	Secret     []byte      // shared by all sides, at least auth.MinSecret bytes
	TLS        *tls.Config // the server's or the client's, of auth.TLS or the user's own; nil for none
	Log        func(error) // for unrelated processes, refusals and attempts to connect, from any goroutine; or nil
	Fail       func(error) // called when a server has been unable to accept connections for 2 s, from any goroutine, again and again; or nil
}

// log reports err to Log, if it is set.
func (c Config) log(err error) {
	if c.Log != nil {
		c.Log(err)
	}
}

// check refuses keys and values over the limits.
func check(key string, value []byte) error {
	switch {
	case len(key) == 0 || len(key) > MaxKey:
		return fmt.Errorf("%w: a key has 1 to %d bytes, not %d", ErrLimit, MaxKey, len(key))
	case len(value) > MaxValue:
		return fmt.Errorf("%w: a value has at most %d bytes, not %d", ErrLimit, MaxValue, len(value))
	}
	return nil
}

// backoff is a pause that doubles up to a limit. Pauses are jittered, so that ranks started
// together do not retry together.
type backoff struct {
	next, max time.Duration
	spread    func(time.Duration) time.Duration // returns a part, nil for a random one
}

// wait pauses, or returns false as soon as one of the channels is closed.
func (b *backoff) wait(a, c <-chan struct{}) bool {
	spread := b.spread
	if spread == nil {
		spread = rand.N[time.Duration]
	}
	pause := time.NewTimer(b.next/2 + spread(b.next/2))
	defer pause.Stop()
	b.next = min(2*b.next, b.max)
	select {
	case <-pause.C:
		return true
	case <-a:
	case <-c:
	}
	return false
}
