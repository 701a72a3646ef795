package comm

import "sync"

// Failing returns a channel that is closed when g fails, also while no operation is
// under way: any operation issued then returns the reason. It is not closed when a rank
// leaves. It is for work beside g that ends with g. Groups made elsewhere tell by a method
// of this name. The channel is nil, which is never closed, for groups that cannot tell.
func Failing(g Group) <-chan struct{} {
	switch g := g.(type) {
	case interface{ failing() <-chan struct{} }:
		return g.failing()
	case interface{ Failing() <-chan struct{} }:
		return g.Failing()
	}
	return nil
}

// alarm is a channel that is closed at most once. The zero value is ready to use.
type alarm struct {
	mu   sync.Mutex
	rung bool
	ch   chan struct{} // nil until somebody listens
}

func (a *alarm) ring() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.rung && a.ch != nil {
		close(a.ch)
	}
	a.rung = true
}

// bell returns the channel.
func (a *alarm) bell() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ch == nil {
		a.ch = make(chan struct{})
		if a.rung {
			close(a.ch)
		}
	}
	return a.ch
}
