package exec

import (
	"container/list"
	"errors"
	"sync"
	"unsafe"
)

// A Cache keeps compiled units, so that identical modules and all ranks of a process share one. The
// units that were asked for longest ago leave it when all take more than Limit bytes. The zero value
// is ready. It is safe for concurrent use: whoever asks for a unit that another goroutine compiles
// waits for that one, all others do not.
type Cache struct {
	Limit int // bytes of compiled programs; 0 means 64 MiB

	mu      sync.Mutex
	entries map[string]*entry
	recent  list.List // the entries that are compiled, the one used last in front
	bytes   int       // of the units in recent
}

// Shared is the cache of the process, for whoever has none of its own.
var Shared = new(Cache)

const defaultLimit = 64 << 20

// entry is a unit that is compiled, or will be when busy is unlocked. It is no channel, since one
// that was made in a bubble of fake time is not for goroutines outside of it.
type entry struct {
	key  identity
	busy sync.Mutex // locked while the unit is compiled
	unit *Unit
	err  error
	at   *list.Element // in recent
}

// Unit returns the unit of spec for sig, compiling it if there is none yet. module is the value
// that spec describes. Modules share a unit if they have one type and their fields are equal; what
// is behind a pointer is not looked at, so that pointers must be the same. A module whose own
// fields were changed after its unit was compiled gets another. One that holds a function shares
// with itself only, and only if it is passed as a pointer.
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

// lookup returns the entry of key, a new one if there is none.
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
	e = &entry{key: key, err: errors.New("the compilation did not end")}
	e.busy.Lock()
	c.entries[key.text] = e
	return e, false
}

// compile fills a new entry. A failure is not remembered.
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

// evict drops units until the others fit, but never the last. A unit that passes still hold lives on
// with them.
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

// bytes returns what an entry takes whose unit is compiled.
func (e *entry) bytes() int {
	const pointer = int(unsafe.Sizeof(uintptr(0)))
	return e.unit.Bytes + len(e.key.text) + len(e.key.pins)*pointer + int(unsafe.Sizeof(*e)+unsafe.Sizeof(*e.at))
}
