// Package state has tests of the whole library: it saves, loads, exports, imports and collects the state of a training, on file systems that fail.
package state
