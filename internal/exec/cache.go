package exec

import (
	"fmt"
	"reflect"
	"sync"
)

// A Cache keeps compiled units, so that identical modules and all ranks of a process share one. It is safe for
// concurrent use.
type Cache struct {
	mu      sync.Mutex
	entries map[string][]cached
	count   int
}

// Shared is the cache of the process.
var Shared = new(Cache)

// maxUnits bounds the cache: a run whose shapes never repeat starts over rather than fill the memory.
const maxUnits = 4096

type cached struct {
	module any
	unit   *Unit
}

// Unit returns the unit of spec for sig, compiling it if there is none yet. module is the value that spec describes: units
// are shared by modules that are deeply equal and print alike. A module whose own fields were changed after its unit was
// compiled prints differently, so it gets another; a change behind a pointer among its fields goes unnoticed. Modules that
// hold pointers are shared where the pointers are the same; one that holds a function is shared with itself only, and only
// if it is passed as a pointer.
func (c *Cache) Unit(module any, spec *Spec, sig *Signature) (*Unit, error) {
	key := fmt.Sprintf("%T %#v %s", module, module, sig.key())
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries[key] {
		if reflect.DeepEqual(e.module, module) {
			return e.unit, nil
		}
	}
	u, err := Compile(spec, sig)
	if err != nil {
		return nil, err
	}
	if c.entries == nil || c.count >= maxUnits {
		c.entries, c.count = make(map[string][]cached), 0
	}
	c.entries[key] = append(c.entries[key], cached{module, u})
	c.count++
	return u, nil
}
