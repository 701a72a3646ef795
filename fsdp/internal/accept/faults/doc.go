// Package faults has tests of the whole library: it makes the mistakes of users and has ranks fail, and requires an error on every rank.
package faults
