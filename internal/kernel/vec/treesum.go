package vec

// fanIn is how many sources one kernel call adds, all held in registers.
const fanIn = 8

// TreeSum sets dst = scale · Σ srcs in the canonical order of this library, a balanced binary tree over the index:
//
//	sum(lo, hi) = sum(lo, mid) + sum(mid, hi)    mid = lo + the largest power of two below hi-lo
//
// It is one pass over memory for up to eight sources; more need scratch memory of 8 KiB for every eight sources. A scale of
// 1 changes nothing. dst may be any of the sources. There must be at least one.
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

// treeSumMany sums every eight sources into a block of scratch and then the blocks. The splits of a tree over more than
// eight sources all fall on multiples of eight, so that gives the same tree.
func treeSumMany[T Float](k *kernels[T], dst []T, srcs [][]T, scale T) {
	const block = 1024
	groups := (len(srcs) + fanIn - 1) / fanIn
	scratch := make([]T, groups*block)
	parts := make([][]T, groups)
	for at := 0; at < len(dst); at += block {
		n := min(block, len(dst)-at)
		for g := range parts {
			parts[g] = scratch[g*block:][:n]
			group := srcs[g*fanIn : min((g+1)*fanIn, len(srcs))]
			if len(group) == 1 {
				copy(parts[g], group[0][at:])
			} else {
				k.treeSum[len(group)](parts[g], group, at, 1)
			}
		}
		TreeSum(dst[at:at+n], parts, scale)
	}
}
