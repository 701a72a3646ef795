//go:build !linux || !cgo

package kit

// UseGPU needs Linux and cgo.
func UseGPU() (restore func()) { panic("the doubles of GPUs need Linux and cgo") }
