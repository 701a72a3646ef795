package store

import (
	"fmt"
	"sync"
)

// table is what a server stores. Values in it are never written to, so they are handed out without
// copying.
type table struct {
	mu      sync.Mutex
	values  map[string][]byte
	bytes   int // of all keys and values, at most MaxTotal
	waiting map[string]*vacancy
}

// vacancy is a key that is waited for and does not exist.
type vacancy struct {
	filled  chan struct{} // closed when it exists
	waiters int
}

func newTable() *table {
	return &table{values: make(map[string][]byte), waiting: make(map[string]*vacancy)}
}

// claim stores value under key unless there is one, and returns the one that is there.
func (t *table) claim(key string, value []byte) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if holder, ok := t.values[key]; ok {
		return holder, nil
	}
	if t.bytes+len(key)+len(value) > MaxTotal {
		return nil, fmt.Errorf("%w: it holds %d bytes, at most %d are allowed", ErrLimit, t.bytes, MaxTotal)
	}
	t.values[key] = value
	t.bytes += len(key) + len(value)
	if v := t.waiting[key]; v != nil {
		delete(t.waiting, key)
		close(v.filled)
	}
	return value, nil
}

// get returns the value of key, if it exists.
func (t *table) get(key string) ([]byte, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	value, ok := t.values[key]
	return value, ok
}

// wait returns the value of key once it exists, or false once stop is closed.
func (t *table) wait(key string, stop <-chan struct{}) ([]byte, bool) {
	t.mu.Lock()
	if value, ok := t.values[key]; ok {
		t.mu.Unlock()
		return value, true
	}
	v := t.waiting[key]
	if v == nil {
		v = &vacancy{filled: make(chan struct{})}
		t.waiting[key] = v
	}
	v.waiters++
	t.mu.Unlock()

	select {
	case <-v.filled:
		return t.get(key)
	case <-stop:
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if v.waiters--; v.waiters == 0 && t.waiting[key] == v {
		delete(t.waiting, key)
	}
	return nil, false
}
