// Package arch holds the rules of the source tree as tests. It has no code of its own.
//
// These are rules that the compiler does not check: which package may import which (the table in
// edges_test.go), which may need Gorgonia and which only decide, that every package and exported
// name is documented, that files stay short, that tests neither sleep nor skip, and that the
// commands in the README and in the comments of the examples run. The rules about documentation,
// files and tests also apply to internal/workshop; its imports are free.
package arch
