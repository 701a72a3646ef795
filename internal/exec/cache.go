package exec

import (
	"container/list"
	"errors"
	"sync"
	"unsafe"
)

// A Cache keeps compiled units, so that identical modules and all ranks of a process share one
// unit. If the units take more than Limit bytes, the least recently used ones are dropped. The zero
// value is ready to use. It is safe for concurrent use: a goroutine that needs a unit which another
// goroutine is compiling waits for it, and other goroutines do not wait.
type Cache struct {
	Limit int // bytes of compiled programs; 0 means 64 MiB

	mu      sync.Mutex
	entries map[string]*entry
	recent  list.List // compiled entries, the most recently used first
	bytes   int       // of the units in recent
}

// Shared is the cache of the process, the default for runs without a Cache.
var Shared = new(Cache)

const defaultLimit = 64 << 20

// entry is a unit that is compiled, or is being compiled while busy is locked. It uses a lock and
// not a channel, since a channel made in a bubble of fake time cannot be used by goroutines outside
// of it.
type entry struct {
	key  identity
	busy sync.Mutex // locked while the unit is compiled
	unit *Unit
	err  error
	at   *list.Element // in recent
}

// Unit returns the unit of spec for sig, and compiles it if the cache does not have it. module is
// the value that spec describes. Modules share a unit if they have the same type and equal fields.
// Pointers are compared, and the memory behind them is not. A module whose fields were changed
// after compilation gets another unit. A module that holds a function shares a unit only with
// itself, and only if it is passed as a pointer.
func (c *Cache) Unit(module any, spec *Spec, sig *Signature) (*Unit, error) {
	key, ok := identify(module, sig)
	if !ok {
		return Compile(spec, sig)
	}
	e, found := c.lookup(key)
	if !found {
		c.compile(e, spec, sig)
	}
	e.busy.Lock()
	defer e.busy.Unlock()
	return e.unit, e.err
}

// lookup returns the entry of key. It adds a new entry if there is none.
func (c *Cache) lookup(key identity) (e *entry, found bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, found = c.entries[key.text]; found {
		if e.at != nil {
			c.recent.MoveToFront(e.at)
		}
		return e, true
	}
	if c.entries == nil {
		c.entries = make(map[string]*entry)
	}
	e = &entry{key: key, err: errors.New("the compilation ended without a result")}
	e.busy.Lock()
	c.entries[key.text] = e
	return e, false
}

// compile fills a new entry. A failure is not cached.
func (c *Cache) compile(e *entry, spec *Spec, sig *Signature) {
	defer func() { // also if Build ends the goroutine
		c.mu.Lock()
		defer c.mu.Unlock()
		if e.err != nil {
			delete(c.entries, e.key.text)
		} else {
			e.at = c.recent.PushFront(e)
			c.bytes += e.bytes()
			e.unit.cached.Store(true)
			c.evict()
		}
		e.busy.Unlock()
	}()
	e.unit, e.err = Compile(spec, sig)
}

// evict drops units until the others fit, but never the last one. Passes that hold a dropped unit
// keep it alive.
func (c *Cache) evict() {
	limit := c.Limit
	if limit == 0 {
		limit = defaultLimit
	}
	for c.bytes > limit && c.recent.Len() > 1 {
		e := c.recent.Remove(c.recent.Back()).(*entry)
		delete(c.entries, e.key.text)
		c.bytes -= e.bytes()
		e.unit.cached.Store(false)
	}
}

// Bytes returns the bytes of memory that the units in the cache take.
func (c *Cache) Bytes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}

// bytes returns the memory of an entry whose unit is compiled.
func (e *entry) bytes() int {
	const pointer = int(unsafe.Sizeof(uintptr(0)))
	return e.unit.Bytes + len(e.key.text) + len(e.key.pins)*pointer + int(unsafe.Sizeof(*e)+unsafe.Sizeof(*e.at))
}
