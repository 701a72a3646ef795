//go:build !linux || !cgo

package fsdp

// UseGPU needs Linux and cgo.
func UseGPU() (restore func()) { panic("the doubles of GPUs need Linux and cgo") }
