// Package workshop is a module for the library's maintainers: benchmarks, fault injection, checks
// on real GPUs and clusters, and staticcheck. It has no code of its own. Its packages import the
// library, including its internal packages; the library imports none of them, so their dependencies
// stay out of the library's go.mod.
//
// "make workshop" in the root lists the targets of the Makefile here. They run from the root, too.
package workshop
