package transport

// Failing returns a channel that is closed when g fails, also while no operation is
// under way: any operation issued then returns the reason. It is not closed when a rank
// leaves. It is for work beside g that ends with g. Groups made elsewhere tell by a method
// of this name. The channel is nil, which is never closed, for groups that cannot tell.
func Failing(g Group) <-chan struct{} {
	if g, ok := g.(interface{ Failing() <-chan struct{} }); ok {
		return g.Failing()
	}
	return nil
}
