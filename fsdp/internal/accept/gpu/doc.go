// Package gpu has tests of the whole library: it trains on doubles of GPUs.
package gpu
