package store

import (
	"fmt"
	"sync"
)

// table holds the data of a server. Values in it never change, so they are returned without
// copying.
type table struct {
	mu      sync.Mutex
	values  map[string][]byte
	bytes   int                            // of all keys and values, at most MaxTotal
	waiting map[string]map[waiter]struct{} // Gets of keys that do not exist; none is empty
}

// waiter is a waiting Get.
type waiter struct {
	session *session
	id      uint64
}

func newTable() *table {
	return &table{values: make(map[string][]byte), waiting: make(map[string]map[waiter]struct{})}
}

// claim stores value under key if the key has no value yet. It returns the value that the key has
// then, and the Gets that have waited for it.
func (t *table) claim(key string, value []byte) (holder []byte, waited map[waiter]struct{}, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if holder, ok := t.values[key]; ok {
		return holder, nil, nil
	}
	if t.bytes+len(key)+len(value) > MaxTotal {
		return nil, nil, fmt.Errorf("%w: it holds %d bytes, at most %d are allowed", ErrLimit, t.bytes, MaxTotal)
	}
	t.values[key] = value
	t.bytes += len(key) + len(value)
	waited = t.waiting[key]
	delete(t.waiting, key)
	return value, waited, nil
}

// get returns the value of key, if it exists. If not, w waits for it from now on.
func (t *table) get(key string, w waiter) (value []byte, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if value, ok = t.values[key]; ok {
		return value, true
	}
	if t.waiting[key] == nil {
		t.waiting[key] = make(map[waiter]struct{})
	}
	t.waiting[key][w] = struct{}{}
	return nil, false
}

// forget removes w from the Gets that wait for key.
func (t *table) forget(key string, w waiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if delete(t.waiting[key], w); len(t.waiting[key]) == 0 {
		delete(t.waiting, key)
	}
}
