// Package parity has tests of the whole library: it compares trainings under every strategy, type, transport and number of ranks with one process, with PyTorch and with each other.
package parity
