// Package kernels has the kernels of the GPU engine as PTX text, which the driver compiles for the
// device that it finds. The text is made of the *.cu beside it by go generate, see package nvrtc: so
// neither a compiler nor a library of CUDA is needed to build, and any GPU since compute capability
// 8.0 (A100) runs it.
//
// A kernel is named family_operation_type. The family is the file.
package kernels

import "embed"

//go:generate go run ./nvrtc

//go:embed *.ptx
var texts embed.FS

// PTX returns the text of a family of kernels, or an error if there is none.
func PTX(family string) ([]byte, error) { return texts.ReadFile(family + ".ptx") }
