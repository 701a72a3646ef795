// Package kernels has the kernels of the GPU engine as PTX text, which the driver compiles for its
// device. go generate makes the text from the *.cu files in this directory, see package nvrtc. So
// building needs neither a compiler nor a library of CUDA, and any GPU since compute capability 8.0
// (A100) runs the kernels. Families named hopper* run on compute capability 9.0 only.
//
// A kernel is named family_operation_type. The family is the file. Families flash* and hopper* have
// one type each, bfloat16, or float16 if they end in f16.
package kernels

import "embed"

//go:generate go run ./nvrtc

//go:embed *.ptx
var texts embed.FS

// PTX returns the text of a family of kernels, or an error if there is none.
func PTX(family string) ([]byte, error) { return texts.ReadFile(family + ".ptx") }
