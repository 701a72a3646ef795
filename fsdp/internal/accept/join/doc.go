// Package join has tests of the whole library: it trains with ranks that have different numbers of batches or calls.
package join
