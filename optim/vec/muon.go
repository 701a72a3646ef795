package vec

// MuonVec is a [Vec] with the parts of the update of optim.Muon, for memory that is not
// [Addressable]. The arguments have the type and implementation of the receiver, and share no
// memory with it.
type MuonVec interface {
	Vec
	// Momentum updates momentum b by gradient g, and sets the elements to the direction that follows,
	// by the formulas of optim.Muon.
	Momentum(g, b Vec, mu float64, nesterov bool) error
	// Orthogonalize replaces the elements, a matrix of rows by columns, by the result of the
	// Newton-Schulz iteration.
	Orthogonalize(rows, cols int, s MuonStep) error
	// Descend updates a parameter p to p·decay - o·rate.
	Descend(o Vec, decay, rate float64) error
}

// MuonStep holds the numbers of the Newton-Schulz iteration: each step replaces X by a polynomial,
// A·X + B·X³ + C·X⁵, where X³ is X·Xᵀ·X. X is divided by its norm first, or by Eps if that is
// larger.
type MuonStep struct {
	Steps   int
	Eps     float64
	A, B, C float64
}
