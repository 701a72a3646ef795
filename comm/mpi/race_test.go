//go:build race && mpi && cgo && unix

package mpi

func init() { raced = true }
