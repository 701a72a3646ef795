package transport

// Failing returns a channel that is closed when g fails, even if no operation is in progress: any
// operation issued then returns the reason. It is not closed when a rank leaves. It is for other
// work that ends with g. Groups of other packages provide it by a method of this name. The channel
// is nil, which is never closed, for groups without the method.
func Failing(g Group) <-chan struct{} {
	if g, ok := g.(interface{ Failing() <-chan struct{} }); ok {
		return g.Failing()
	}
	return nil
}
