// Package memory has tests of the whole library: it counts and bounds the memory of a training, and moves it to files and to groups that share it.
package memory
