// Package arch holds the rules of the source tree as tests. It has no code of its own.
//
// The rules are those that no compiler checks: which package may import which, that every package and exported name is
// documented, that files stay short, and that tests neither sleep nor skip.
//
//	low   leaf packages below internal, shard
//	      comm, optim
//	      nccl
//	      fsdp
//	      fsdp/nn
//	high  commands and examples
//
// Packages that do not exist yet have their place already. An import goes down this list, or from one leaf package to another: never up.
package arch
