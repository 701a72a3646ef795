// Package arch holds the rules of the source tree as tests. It has no code of its own.
//
// The rules are those that no compiler checks: which package may import which (the table in
// edges_test.go), which may need Gorgonia and which only decide, that every package and exported
// name is documented, that files stay short, that tests neither sleep nor skip, and that the commands
// in the README and in the comments of the examples run. The rules about documentation, files and
// tests hold for internal/workshop, too; its imports are free.
package arch
