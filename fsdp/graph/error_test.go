package graph_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/graph"
)

func TestErrors(t *testing.T) {
	f64 := tensor.Float64
	product := func(m *net) *G.Node { return G.Must(G.Mul(m.input("x", 2, 3), m.weight("w", 3, 4))) }
	image := func(m *net) *G.Node {
		one := []int{1, 1}
		return G.Must(G.Conv2d(m.input("x", 1, 1, 4, 4), m.weight("w", 1, 1, 3, 3), tensor.Shape{3, 3}, one, one, one))
	}
	for name, c := range map[string]struct {
		build func(m *net) // sets m.cost; without it, the cost is the sum of m.pred
		want  []string
	}{
		"cost nil":        {func(m *net) { product(m) }, []string{"cost is nil"}},
		"cost not scalar": {func(m *net) { m.cost = product(m) }, []string{"cost", "A × B", "shape (2, 4)", "single number"}},
		"cost of ints":    {func(m *net) { m.pred = product(m); m.cost = G.NewScalar(m.g, tensor.Int, G.WithName("n")) }, []string{`cost "n" is int`}},
		"cost a learnable": {func(m *net) {
			m.cost = G.NewScalar(m.g, f64, G.WithName("s"), G.WithValue(1.0))
			m.learn = G.Nodes{m.cost}
		}, []string{`result "s" is not a float that is computed`}},
		"other graph": {func(m *net) {
			m.pred = product(m)
			m.learn = append(m.learn, newNet(f64).weight("alien", 2, 2))
		}, []string{`learnable "alien" belongs to another graph`}},
		"no learnables": {func(m *net) { m.pred = product(m); m.learn = nil }, []string{"no learnables"}},
		"nil input":     {func(m *net) { m.pred = product(m); m.inputs = append(m.inputs, nil) }, []string{"input 1 is nil"}},
		"no value": {func(m *net) {
			w := G.NewMatrix(m.g, f64, G.WithName("bare"), G.WithShape(4, 4))
			m.pred, m.learn = G.Must(G.Mul(product(m), w)), append(m.learn, w)
		}, []string{`learnable "bare"`, "no value"}},
		"value of another shape": {func(m *net) {
			w := G.NewMatrix(m.g, f64, G.WithName("w"), G.WithValue(fill(f64, 1, 1, 4, 3)), G.WithShape(3, 4))
			m.pred, m.learn = G.Must(G.Mul(m.input("x", 2, 3), w)), G.Nodes{w}
		}, []string{`learnable "w" has a value of shape (4, 3), the node has (3, 4)`}},
		"constant of another type": {func(m *net) {
			three := G.Must(G.ConvType(m.g.AddNode(G.NewConstant(int32(3))), tensor.Int32, f64))
			m.pred = G.Must(G.Mul(product(m), three))
		}, []string{`constant "3" has an unsupported value`, "element type int32 is not supported"}},
		"no shape": {func(m *net) {
			m.pred = product(m)
			m.learn = append(m.learn, G.NewMatrix(m.g, f64, G.WithName("vague")))
		}, []string{`learnable "vague" has no shape`}},
		"other type": {func(m *net) {
			m.pred = product(m)
			m.inputs = append(m.inputs, G.NewMatrix(m.g, tensor.Float32, G.WithName("half"), G.WithShape(2, 2)))
		}, []string{`input "half" is float32`, "float64"}},
		"unbound": {func(m *net) {
			z := G.NewMatrix(m.g, f64, G.WithName("z"), G.WithShape(2, 4))
			m.pred = G.Must(G.Add(product(m), z))
		}, []string{`node "z"`, "(2, 4)", "neither an input nor a learnable", "graph.Constants"}},
		"unused":     {func(m *net) { m.pred = product(m); m.weight("idle", 2) }, []string{`learnable "idle" is not used by the cost`}},
		"twice":      {func(m *net) { m.pred = product(m); m.learn = append(m.learn, m.learn[0]) }, []string{`learnable "w" is listed twice`}},
		"both":       {func(m *net) { m.pred = product(m); m.inputs = append(m.inputs, m.learn[0]) }, []string{`learnable "w" is listed twice`}},
		"not a leaf": {func(m *net) { m.pred = product(m); m.learn = append(m.learn, m.pred) }, []string{"learnable", "A × B", "must be a leaf"}},
		"pooling": {func(m *net) {
			m.pred = G.Must(G.AveragePool2D(image(m), tensor.Shape{2, 2}, []int{0, 0}, []int{2, 2}))
		}, []string{`call "w"`, "node", "AvgPool", "refused", "use op.AvgPool2D"}},
		"named": {func(m *net) {
			m.pred = G.Must(G.Sparsemax(product(m)))
			G.WithName("scale")(m.pred)
		}, []string{`node "scale"`, "refused", "use a softmax"}},
		"no such random numbers": {func(m *net) {
			m.pred = G.Must(G.HadamardProd(product(m), G.BinomialRandomNode(m.g, f64, 1, 1.5, 2, 4)))
		}, []string{`call "w"`, "node", "is refused: 1 trials of probability 1.5: use"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newNet(f64)
			c.build(m)
			if m.cost == nil && m.pred != nil {
				m.cost = G.Must(G.Sum(m.pred))
			}
			model, err := graph.Model(m.cost, m.inputs, m.learn)
			require.Nil(t, model)
			require.Error(t, err)
			require.Contains(t, err.Error(), "graph: ")
			for _, w := range c.want {
				require.ErrorContains(t, err, w)
			}
			require.NotContains(t, err.Error(), "goroutine")
		})
	}
}

// Gradients that are in the graph already, and nodes that hang off it, are not ours.
func TestIgnoresGradients(t *testing.T) {
	plain, graded := mlp(tensor.Float64), mlp(tensor.Float64)
	_, err := G.Grad(graded.cost, graded.learn...)
	require.NoError(t, err)
	G.Must(G.Square(graded.pred))
	cfg := fsdp.Config{WrapPolicy: fsdp.WrapEach()}
	require.Equal(t, train(t, plain, plain.model(t), 1, 2, 0.1, cfg), train(t, graded, graded.model(t), 1, 2, 0.1, cfg))
	a, _ := callsOf(t, plain.model(t), fsdp.Float64)
	b, _ := callsOf(t, graded.model(t), fsdp.Float64)
	require.Equal(t, a, b)
}

// Values are taken by Model: what happens to the graph later does not matter.
func TestCopiesValues(t *testing.T) {
	m := mlp(tensor.Float32)
	model := m.model(t)
	first := train(t, m, model, 1, 1, 0.1, fsdp.Config{})
	for _, n := range m.learn {
		clearValue(n.Value())
	}
	require.Equal(t, first, train(t, m, model, 1, 1, 0.1, fsdp.Config{}))
}

// Views are values like any other: of some columns, of some rows, transposed.
func TestCopiesViews(t *testing.T) {
	table := fill(tensor.Float64, 1, 1, 5, 5)
	columns, err := table.Slice(nil, G.S(1, 3))
	require.NoError(t, err)
	rows, err := table.Slice(G.S(1, 3))
	require.NoError(t, err)
	require.NoError(t, rows.T())
	for _, v := range []tensor.View{columns, rows} {
		g := G.NewGraph()
		x := G.NewMatrix(g, tensor.Float64, G.WithName("x"), G.WithShape(1, 5))
		w := G.NewMatrix(g, tensor.Float64, G.WithName("w"), G.WithShape(5, 2), G.WithValue(v.(*tensor.Dense)))
		model, err := graph.Model(G.Must(G.Sum(G.Must(G.Mul(x, w)))), G.Nodes{x}, G.Nodes{w})
		require.NoError(t, err)
		s := wrap(t, model, fsdp.Config{Precision: fsdp.Precision{Compute: fsdp.Float64}})
		state, err := s.StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		require.Equal(t, v.Materialize().Data(), state["w.w"].Data())
		require.NoError(t, s.Close())
	}
}

// Eval gives the other nodes, which training does not compute.
func TestResults(t *testing.T) {
	m := mlp(tensor.Float64)
	extra := G.Must(G.Mul(m.pred, G.Must(G.Transpose(m.pred, 1, 0))))
	model, err := graph.Model(m.cost, m.inputs, m.learn, graph.Results(m.pred), graph.Results(extra))
	require.NoError(t, err)
	s := wrap(t, model, fsdp.Config{Precision: fsdp.Precision{Compute: fsdp.Float64}})
	batch := m.batch(0, 0)
	got, err := s.Eval(t.Context(), batch...)
	require.NoError(t, err)
	require.Len(t, got, 3)

	vm := G.NewTapeMachine(m.g)
	defer vm.Close()
	for i, v := range batch {
		require.NoError(t, G.Let(m.inputs[i], v))
	}
	require.NoError(t, vm.RunAll())
	for i, n := range []*G.Node{m.cost, m.pred, extra} {
		requireClose(t, floats(n.Value()), floats(got[i]), 1e-12, "result %d", i)
	}
	plan, err := s.Plan(batch...)
	require.NoError(t, err)
	calls, _ := callsOf(t, model, fsdp.Float64)
	require.Equal(t, "graph:", calls[len(calls)-1])
	require.NotContains(t, plan.Schedule, "forward graph")
	require.Contains(t, plan.Schedule, "forward w2")
	require.NoError(t, s.Close())

	for _, leaf := range []*G.Node{m.inputs[0], m.learn[0]} {
		_, err := graph.Model(m.cost, m.inputs, m.learn, graph.Results(leaf))
		require.ErrorContains(t, err, leaf.Name())
	}
}

// A batch must fit the graph, and so must the precision.
func TestBatches(t *testing.T) {
	m := mlp(tensor.Float32)
	s := wrap(t, m.model(t), fsdp.Config{})
	_, err := s.Forward(t.Context(), fill(m.dt, 0, 1, 4, 7), fill(m.dt, 0, 1, 5, 3))
	require.ErrorContains(t, err, `node "x": the batch is float32(4, 7), but the graph was built for float32(5, 7): pad the batch to this shape, or build and wrap a graph for the other shape, and copy the parameters by StateDict and LoadStateDict`)
	_, err = s.Forward(t.Context(), m.batch(0, 0)[0])
	require.ErrorContains(t, err, "1 tensors, the model takes 2")
	_, err = s.Forward(t.Context(), m.batch(0, 0)...)
	require.NoError(t, err, "the model is as it was")
	require.NoError(t, s.Close())

	s = wrap(t, m.model(t), fsdp.Config{Precision: fsdp.Precision{Compute: fsdp.Float64}})
	m.dt = tensor.Float64
	_, err = s.Forward(t.Context(), m.batch(0, 0)...)
	require.ErrorContains(t, err, "the graph has type float32, but Config.Precision computes in float64")
	require.NoError(t, s.Close())
}

// Scalars are inputs too, and names that cannot be used or are taken are changed.
func TestNamesAndScalars(t *testing.T) {
	g := G.NewGraph()
	x := G.NewMatrix(g, tensor.Float64, G.WithName("x"), G.WithShape(2, 3))
	scale := G.NewScalar(g, tensor.Float64, G.WithName("scale"))
	w := G.NewMatrix(g, tensor.Float64, G.WithName("layer #1"), G.WithShape(3, 3), G.WithValue(fill(tensor.Float64, 1, 1, 3, 3)))
	v := G.NewMatrix(g, tensor.Float64, G.WithName("layer #1"), G.WithShape(3, 1), G.WithValue(fill(tensor.Float64, 2, 1, 3, 1)))
	u := G.NewMatrix(g, tensor.Float64, G.WithShape(1, 1), G.WithValue(fill(tensor.Float64, 2, 1, 1, 1)))
	h := G.Must(G.Tanh(G.Must(G.HadamardProd(G.Must(G.Mul(x, w)), scale))))
	cost := G.Must(G.Sum(G.Must(G.Mul(G.Must(G.Tanh(G.Must(G.Mul(h, v)))), u))))
	model, err := graph.Model(cost, G.Nodes{x, scale}, G.Nodes{w, v, u})
	require.NoError(t, err)
	lines, _ := callsOf(t, model, fsdp.Float64)
	require.Equal(t, []string{"layer__1: layer__1.layer__1", "layer__1@2: layer__1@2.layer__1@2", "unnamed: unnamed.unnamed"}, lines)

	s := wrap(t, model, fsdp.Config{Precision: fsdp.Precision{Compute: fsdp.Float64}})
	xs, one := fill(tensor.Float64, 3, 1, 2, 3), tensor.New(tensor.FromScalar(0.0))
	loss, err := s.Forward(t.Context(), xs, one)
	require.NoError(t, err)
	require.Zero(t, loss)
	require.NoError(t, s.Close())
}

// Integers cannot pass from call to call, so what is computed of them is computed wherever it is
// needed.
func TestIntegers(t *testing.T) {
	g := G.NewGraph()
	x := G.NewMatrix(g, tensor.Int, G.WithName("x"), G.WithShape(2, 2))
	identity := func() G.NodeConsOpt { return G.WithValue(dense(tensor.Float64, []float64{1, 0, 0, 1}, 2, 2)) }
	w := G.NewMatrix(g, tensor.Float64, G.WithName("w"), G.WithShape(2, 2), identity())
	v := G.NewMatrix(g, tensor.Float64, G.WithName("v"), G.WithShape(2, 2), identity())
	square := G.Must(G.HadamardProd(x, x))
	float := func(n *G.Node) *G.Node { return G.Must(G.ConvType(n, tensor.Int, tensor.Float64)) }
	h := G.Must(G.Square(G.Must(G.Mul(float(square), w))))
	three := float(g.AddNode(G.NewConstant(3)))
	sum := G.Must(G.Sum(G.Must(G.HadamardProd(G.Must(G.Mul(h, v)), float(G.Must(G.Sub(square, x)))))))
	cost := G.Must(G.Mul(three, sum))
	model, err := graph.Model(cost, G.Nodes{x}, G.Nodes{w, v})
	require.NoError(t, err)
	s := wrap(t, model, fsdp.Config{WrapPolicy: fsdp.WrapEach(), Precision: fsdp.Precision{Compute: fsdp.Float64}})
	loss, err := s.Forward(t.Context(), tensor.New(tensor.WithShape(2, 2), tensor.WithBacking([]int{1, 2, 3, 4})))
	require.NoError(t, err)
	require.InDelta(t, 3*(1*0+16*2+81*6+256*12), loss, 1e-9) // three times the sum of x⁴·(x² - x)
	require.NoError(t, s.Backward(t.Context()))
	require.NoError(t, s.Close())
}

// Ranks that start from different values would train different models: Wrap says in which call.
func TestRanksMustStartAlike(t *testing.T) {
	models := make([]fsdp.Model, 2)
	for r := range models {
		m := mlp(tensor.Float32)
		if r == 1 {
			m.learn[2].Value().(*tensor.Dense).Float32s()[5] += 1
		}
		models[r] = m.model(t)
	}
	for _, err := range errorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
		_, err := fsdp.WrapContext(ctx, models[g.Rank()], fsdp.Config{Group: g})
		return err
	}) {
		require.ErrorContains(t, err, "ranks disagree about the model")
		require.ErrorContains(t, err, "call w1")
	}
}

// Ranks that take the same graph and values but learn another of two equal leaves disagree too.
func TestRanksMustLearnAlike(t *testing.T) {
	models := make([]fsdp.Model, 2)
	for r := range models {
		m := newNet(tensor.Float64)
		x := m.input("x", 2, 2)
		leaves := make(G.Nodes, 2)
		for i := range leaves {
			name := []string{"fixed", "learned"}[(i+r)%2]
			leaves[i] = G.NewMatrix(m.g, m.dt, G.WithName(name), G.WithShape(2, 2), G.WithValue(fill(m.dt, 1, 1, 2, 2)))
		}
		cost := G.Must(G.Sum(G.Must(G.Mul(G.Must(G.Mul(x, leaves[0])), leaves[1]))))
		var err error
		models[r], err = graph.Model(cost, G.Nodes{x}, G.Nodes{leaves[1-r]}, graph.Constants(leaves[r]))
		require.NoError(t, err)
	}
	for _, err := range errorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
		_, err := fsdp.WrapContext(ctx, models[g.Rank()], fsdp.Config{Group: g, Precision: fsdp.Precision{Compute: fsdp.Float64}})
		return err
	}) {
		require.ErrorContains(t, err, "ranks disagree about the model")
	}
}
