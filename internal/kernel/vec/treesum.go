package vec

import "sync"

// fanIn is the number of sources that one kernel call adds, all held in registers.
const fanIn = 8

// TreeSum sets dst = scale · Σ srcs in the canonical order of this library, a balanced binary tree
// over the index:
//
//	sum(lo, hi) = sum(lo, mid) + sum(mid, hi)    mid = lo + the largest power of two below hi-lo
//
// Up to eight sources take one pass over memory. More sources need scratch memory, one block for
// every eight, which is reused. A scale of 1 changes nothing. dst may be any of the sources. There
// must be at least one source, and all have the length of dst.
func TreeSum[T Float](dst []T, srcs [][]T, scale T) {
	if len(srcs) == 0 {
		panic("vec: TreeSum: no sources")
	}
	for _, s := range srcs {
		same("TreeSum", len(dst), len(s))
	}
	k := table[T]()
	switch n := len(srcs); {
	case n == 1:
		ScaleTo(dst, scale, srcs[0])
	case n <= fanIn:
		for i := 0; i < len(dst); i += piece {
			k.treeSum[n](dst[i:min(i+piece, len(dst))], srcs, i, scale)
		}
	default:
		treeSumMany(k, dst, srcs, scale)
	}
}

// treeBlock is the number of elements of eight sources that are summed before the next eight: eight
// such sums fit the inner caches.
const treeBlock = 1024

// treeScratch is the memory for the sums of every eight sources. It is reused: a reduction is one
// call for each part of a tensor, and the number of parts grows with the sources. Without reuse the
// garbage would be quadratic in the sources.
type treeScratch[T Float] struct {
	memory []T   // blocks of treeBlock
	sums   [][]T // the parts of them in use
}

// treeScratches holds *treeScratch[T]. A program nearly always reduces one T; scratch of another
// type is dropped.
var treeScratches sync.Pool

// treeSumMany sums every eight sources into a block of scratch and then the blocks. A tree over
// more than eight sources splits at multiples of eight only, so this is the same tree.
func treeSumMany[T Float](k *kernels[T], dst []T, srcs [][]T, scale T) {
	blocks := (len(srcs) + fanIn - 1) / fanIn
	scratch, _ := treeScratches.Get().(*treeScratch[T])
	if scratch == nil || len(scratch.sums) < blocks {
		scratch = &treeScratch[T]{make([]T, blocks*treeBlock), make([][]T, blocks)}
	}
	defer treeScratches.Put(scratch)
	sums := scratch.sums[:blocks]
	for at := 0; at < len(dst); at += treeBlock {
		n := min(treeBlock, len(dst)-at)
		for g := range sums {
			sums[g] = scratch.memory[g*treeBlock:][:n]
			group := srcs[g*fanIn : min((g+1)*fanIn, len(srcs))]
			if len(group) == 1 {
				copy(sums[g], group[0][at:])
			} else {
				k.treeSum[len(group)](sums[g], group, at, 1)
			}
		}
		TreeSum(dst[at:at+n], sums, scale)
	}
}
