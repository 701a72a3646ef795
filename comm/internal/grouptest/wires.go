package grouptest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/gofsdp/gofsdp/internal/mesh"
)

// Wires is the network of one of several sessions in this process: a session gets a message at
// once, in the goroutine that sends it. There are neither data connections nor files.
type Wires struct {
	Rank    int
	Peers   []mesh.Handler    // the sessions of all ranks
	Lost    func(to int) bool // reports whether messages to a rank get lost; nil if none do
	Relayed bool              // ranks learn from others that a rank has ended
}

// Wired returns n sessions in this process, each made with its network.
func Wired[S mesh.Handler](n int, create func(Wires) S) []S {
	sessions, peers := make([]S, n), make([]mesh.Handler, n)
	for r := range sessions {
		sessions[r] = create(Wires{Rank: r, Peers: peers})
		peers[r] = sessions[r]
	}
	return sessions
}

// Send passes a message to a rank.
func (w Wires) Send(to int, msg []byte) error {
	switch {
	case w.Lost != nil && w.Lost(to):
		return nil
	case len(msg) > mesh.MaxMessage:
		return fmt.Errorf("grouptest: a message of %d bytes, at most %d are allowed", len(msg), mesh.MaxMessage)
	}
	w.Peers[to].Message(w.Rank, slices.Clone(msg))
	return nil
}

// Tell passes a message to the other ones of some ranks.
func (w Wires) Tell(ranks []int, msg []byte) {
	for _, r := range ranks {
		if r != w.Rank {
			_ = w.Send(r, msg)
		}
	}
}

// SameHost reports that all ranks are on one host.
func (w Wires) SameHost(int) bool { return true }

// Host returns its name.
func (w Wires) Host(int) string { return "here" }

// Relays reports whether ranks get the news from other ranks that a rank has ended.
func (w Wires) Relays() bool { return w.Relayed }

// Connect fails.
func (w Wires) Connect(context.Context, int, uint64) ([]mesh.Lane, error) {
	return nil, errors.New("grouptest: Wires makes no connections")
}

// Forget does nothing.
func (w Wires) Forget(uint64) {}

// Plain reports that connections are plain TCP.
func (w Wires) Plain(context.Context) bool { return true }

// Modelled reports that time passes.
func (w Wires) Modelled() bool { return false }

// SendFile fails.
func (w Wires) SendFile(int, uint64, *os.File) error {
	return errors.New("grouptest: Wires passes no files")
}

// File fails.
func (w Wires) File(context.Context, int, uint64) (*os.File, error) {
	return nil, errors.New("grouptest: Wires passes no files")
}

// Close does nothing.
func (w Wires) Close() error { return nil }
