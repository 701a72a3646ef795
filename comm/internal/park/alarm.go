package park

import "sync"

// Alarm is a channel that is closed at most once. The zero value is ready to use.
type Alarm struct {
	mu   sync.Mutex
	rung bool
	ch   chan struct{} // nil until the first call of Bell
}

// Ring closes the channel.
func (a *Alarm) Ring() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.rung && a.ch != nil {
		close(a.ch)
	}
	a.rung = true
}

// Bell returns the channel.
func (a *Alarm) Bell() <-chan struct{} {
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
