// Package observe has tests of the whole library: it compares a training with its plan, its events, traces, profiles, hashes and texts.
package observe
