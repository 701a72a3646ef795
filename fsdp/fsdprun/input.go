package main

import (
	"io"
	"os"
	"sync"
)

// input passes standard input to the current process of rank 0. Ranks could not read a terminal
// themselves: their process groups are in the background.
type input struct {
	mu     sync.Mutex
	change sync.Cond
	to     *os.File // rank 0's end of the pipe, nil between starts
	eof    bool
	closed bool
}

func newInput(from io.Reader) *input {
	in := &input{}
	in.change.L = &in.mu
	go in.pump(from) // ends when reading does, at the latest with the process
	return in
}

func (in *input) pump(from io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			to := in.receiver()
			if to == nil {
				return
			}
			to.Write(buf[:n]) // an error means that rank 0 does not want it, or is gone
		}
		if err != nil {
			in.mu.Lock()
			in.eof = true
			in.feed(nil)
			in.mu.Unlock()
			return
		}
	}
}

// receiver waits for a rank 0. It returns nil if no further one will come.
func (in *input) receiver() *os.File {
	in.mu.Lock()
	defer in.mu.Unlock()
	for in.to == nil && !in.closed {
		in.change.Wait()
	}
	if in.closed {
		return nil
	}
	return in.to
}

// feed replaces the receiver, with the lock held.
func (in *input) feed(to *os.File) {
	if in.to != nil {
		in.to.Close()
	}
	in.to = to
	if in.eof && in.to != nil {
		in.to.Close()
		in.to = nil
	}
	in.change.Broadcast()
}

// attach sends input to a new rank 0, and detach stops that.
func (in *input) attach(to *os.File) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.feed(to)
}

func (in *input) detach() { in.attach(nil) }

// close lets the pump end.
func (in *input) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.feed(nil)
}
