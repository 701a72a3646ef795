package optim_test

import (
	"fmt"
	"log"
	"regexp"

	"github.com/gofsdp/gofsdp/optim"
)

// Fits y = w·x + b to two points. The buffers belong to the model; the optimizer updates them in
// place.
func Example() {
	value, grad := make([]float64, 2), make([]float64, 2)
	params := []optim.Param{
		{Name: "w", Shape: []int{1, 1}, Value: optim.Host{F64: value[:1]}, Grad: optim.Host{F64: grad[:1]}},
		{Name: "b", Shape: []int{1}, Value: optim.Host{F64: value[1:]}, Grad: optim.Host{F64: grad[1:]}},
	}
	opt, err := optim.AdamW{WeightDecay: 1e-4, Rules: []optim.Rule{optim.NoDecay()}}.New(params)
	if err != nil {
		panic(err)
	}
	lr := optim.WarmupCosine(0.3, 0.003, 10, 400)
	for opt.Steps() < 400 {
		clear(grad)
		for _, point := range [][2]float64{{1, 1}, {2, 3}} {
			x, y := point[0], point[1]
			d := value[0]*x + value[1] - y
			grad[0] += d * x
			grad[1] += d
		}
		if err := opt.Step(lr(opt.Steps())); err != nil {
			panic(err)
		}
	}
	fmt.Printf("y = %.2fx %+.2f after %d steps\n", value[0], value[1], opt.Steps())
	// Output: y = 2.00x -1.00 after 400 steps
}

// Saves the state of two pieces and restores it into an optimizer that owns the whole parameter.
func ExampleOptimizer_restore() {
	value, grad := make([]float32, 4), []float32{1, 2, 3, 4}
	piece := func(from, to int) optim.Param {
		return optim.Param{
			Name: "w", Shape: []int{4}, Offset: from,
			Value: optim.Host{F32: value[from:to]}, Grad: optim.Host{F32: grad[from:to]},
		}
	}
	config := optim.SGD{Momentum: 0.5}
	two, err := config.New([]optim.Param{piece(0, 3), piece(3, 4)})
	if err != nil {
		panic(err)
	}
	if err := two.Step(0.1); err != nil {
		panic(err)
	}
	one, err := config.New([]optim.Param{piece(0, 4)})
	if err != nil {
		panic(err)
	}
	if err := one.Restore(two.Steps(), two.State()); err != nil {
		panic(err)
	}
	for _, e := range one.State() {
		fmt.Println(e.Param, e.Name, e.Offset, e.Data.(optim.Host).F32)
	}
	// Output: w momentum_buffer 0 [1 2 3 4]
}

// Fine-tunes the head alone, then everything: a new optimizer takes over the head's state and
// starts the trunk afresh.
func ExampleOptimizer_adopt() {
	param := func(name string) optim.Param {
		return optim.Param{
			Name: name, Shape: []int{1},
			Value: optim.Host{F32: []float32{0}}, Grad: optim.Host{F32: []float32{1}},
		}
	}
	head, trunk := param("head"), param("trunk")
	first, err := optim.AdamW{}.New([]optim.Param{head})
	if err != nil {
		panic(err)
	}
	for range 100 {
		if err := first.Step(1e-3); err != nil {
			panic(err)
		}
	}
	all, err := optim.AdamW{}.New([]optim.Param{trunk, head})
	if err != nil {
		panic(err)
	}
	if err := all.Adopt(first.Steps(), first.State()); err != nil {
		panic(err)
	}
	if err := all.Step(1e-3); err != nil {
		panic(err)
	}
	fmt.Println("step", all.Steps())
	for _, e := range all.State() {
		if e.Name == "exp_avg" {
			fmt.Println(e.Param, e.Steps)
		}
	}
	// Output:
	// step 101
	// trunk 1
	// head 101
}

// Trains matrices with AdamW and everything else with momentum.
func ExampleCompose() {
	param := func(name string, shape ...int) optim.Param {
		return optim.Param{
			Name: name, Shape: shape,
			Value: optim.Host{F32: make([]float32, 2)}, Grad: optim.Host{F32: []float32{1, 2}},
		}
	}
	params := []optim.Param{param("fc.weight", 1, 2), param("fc.bias", 2), param("ln.weight", 2)}
	var matrices, rest []optim.Param
	for _, p := range params {
		if len(p.Shape) == 2 {
			matrices = append(matrices, p)
		} else {
			rest = append(rest, p)
		}
	}
	adamw, err := optim.AdamW{}.New(matrices)
	if err != nil {
		panic(err)
	}
	momentum, err := optim.SGD{Momentum: 0.9}.New(rest)
	if err != nil {
		panic(err)
	}
	opt, err := optim.Compose(adamw, momentum)
	if err != nil {
		panic(err)
	}
	if err := opt.Step(0.1); err != nil {
		panic(err)
	}
	for _, e := range opt.State() {
		fmt.Println(e.Param, e.Name)
	}
	// Output:
	// fc.weight exp_avg
	// fc.weight exp_avg_sq
	// fc.bias momentum_buffer
	// ln.weight momentum_buffer
}

// Keeps the state of Adam in 8 bits, but for a parameter that needs more.
func ExampleBlockwise() {
	bytes := 0
	param := func(name string, rows, cols int) optim.Param {
		n := rows * cols
		return optim.Param{
			Name: name, Shape: []int{rows, cols},
			Value: optim.Host{F32: make([]float32, n)}, Grad: optim.Host{F32: make([]float32, n)},
			Alloc: func(n int) (optim.Vec, error) {
				bytes += 4 * n
				return optim.Host{F32: make([]float32, n)}, nil
			},
		}
	}
	embedding := optim.Rule{Match: optim.MatchName(regexp.MustCompile(`^wte`)), Bits: new(0)}
	c := optim.AdamW{Bits: 8, Rules: []optim.Rule{embedding}}
	for _, p := range []optim.Param{param("wte.weight", 1000, 64), param("fc.weight", 256, 64), param("head.bias", 1, 10)} {
		opt, err := c.New([]optim.Param{p})
		if err != nil {
			panic(err)
		}
		fmt.Printf("%-10s  %s, %.2f bytes an element\n", p.Name, optim.Groups(opt)[0].Facts()[0], float64(bytes)/float64(p.Value.Len()))
		bytes = 0
	}
	// Output:
	// wte.weight  AdamW, 8.00 bytes an element
	// fc.weight   AdamW8bit, 2.03 bytes an element
	// head.bias   AdamW, 8.00 bytes an element
}

// Searches for the scale of a loss whose gradient, 3 here, overflows float16 beyond 65504.
func ExampleLossScale() {
	scaler, err := optim.LossScale{Interval: 2}.New()
	if err != nil {
		panic(err)
	}
	for step := range 6 {
		scale := scaler.Scale()
		grad := 3 * scale
		finite := grad <= 65504 // on every rank
		if finite {
			fmt.Printf("step %d  scale %5.0f  gradient %v\n", step, scale, grad/scale)
		} else {
			fmt.Printf("step %d  scale %5.0f  overflow, no update\n", step, scale)
		}
		scaler.Update(finite)
	}
	// Output:
	// step 0  scale 65536  overflow, no update
	// step 1  scale 32768  overflow, no update
	// step 2  scale 16384  gradient 3
	// step 3  scale 16384  gradient 3
	// step 4  scale 32768  overflow, no update
	// step 5  scale 16384  gradient 3
}

// A few points of a schedule: warm-up, peak, half way, end.
func ExampleWarmupCosine() {
	lr := optim.WarmupCosine(1e-3, 1e-4, 99, 1099)
	for _, step := range []int{0, 49, 99, 599, 1099} {
		fmt.Printf("step %4d  lr %.2e\n", step, lr(step))
	}
	// Output:
	// step    0  lr 1.00e-05
	// step   49  lr 5.00e-04
	// step   99  lr 1.00e-03
	// step  599  lr 5.50e-04
	// step 1099  lr 1.00e-04
}

// Warmup, stable, decay; and an old recipe of convolutional networks, with a warm-up.
func ExampleWSD() {
	wsd := optim.WSD(1e-3, 0, 100, 200, 1000)
	old := optim.Warmup(100, optim.StepDecay(0.1, 0.1, 300, 600, 900))
	for _, step := range []int{0, 99, 100, 700, 900, 1000} {
		fmt.Printf("step %4d  %.1e  %.1e\n", step, wsd(step), old(step))
	}
	// Output:
	// step    0  9.9e-06  9.9e-04
	// step   99  9.9e-04  9.9e-02
	// step  100  1.0e-03  1.0e-01
	// step  700  1.0e-03  1.0e-03
	// step  900  5.0e-04  1.0e-04
	// step 1000  0.0e+00  1.0e-04
}

// The rate falls once the loss of a validation has stopped to.
func ExamplePlateau() {
	plateau, err := optim.Plateau{Factor: 0.5, Patience: 1}.New()
	if err != nil {
		log.Fatal(err)
	}
	for i, loss := range []float64{3, 2, 2.1, 2.2, 1.9} {
		if plateau.Update(loss) {
			fmt.Println("validation", i, "is no better: the rate is multiplied by", plateau.Scale())
		}
	}
	// Output: validation 3 is no better: the rate is multiplied by 0.5
}

// The average of a parameter that jumps about is closer to where it jumps than the parameter is.
func ExampleEMA() {
	value, grad := optim.Host{F64: []float64{1}}, optim.Host{F64: []float64{0}}
	opt, err := optim.SGD{}.New([]optim.Param{{Name: "w", Shape: []int{1}, Value: value, Grad: grad}})
	if err != nil {
		log.Fatal(err)
	}
	if err := optim.EMA(opt, 0.9); err != nil {
		log.Fatal(err)
	}
	for range 99 {
		grad.F64[0] = 2 * value.F64[0] // at a rate of 1, it only changes its sign
		if err := opt.Step(1); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Printf("value   %.2f\n", value.F64[0])
	if err := optim.Swap(opt); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("average %.2f\n", value.F64[0]) // here to be evaluated, or exported
	fmt.Println(opt.Step(1))
	if err := optim.Swap(opt); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("value   %.2f\n", value.F64[0])
	// Output:
	// value   -1.00
	// average -0.05
	// optim: sgd: step 99: the averages have replaced the values: Swap them back first
	// value   -1.00
}

// A matrix belongs to Muon and its bias to AdamW. Each update of Muon has about the same length in all
// directions, however long the gradient is in them.
func ExampleMuon() {
	matrix := optim.Param{
		Name: "fc.weight", Shape: []int{2, 2},
		Value: optim.Host{F32: make([]float32, 4)}, Grad: optim.Host{F32: []float32{400, 0, 0, 3}},
	}
	bias := optim.Param{
		Name: "fc.bias", Shape: []int{2},
		Value: optim.Host{F32: make([]float32, 2)}, Grad: optim.Host{F32: []float32{1, -1}},
	}
	muon, err := optim.Muon{Scale: optim.ByShape}.New([]optim.Param{matrix})
	if err != nil {
		log.Fatal(err)
	}
	adamw, err := optim.AdamW{}.New([]optim.Param{bias})
	if err != nil {
		log.Fatal(err)
	}
	opt, err := optim.Compose(muon, adamw)
	if err != nil {
		log.Fatal(err)
	}
	if err := opt.Step(0.1); err != nil {
		log.Fatal(err)
	}
	w := matrix.Value.(optim.Host).F32
	fmt.Println("alike:", w[0] < -0.05 && w[0] > -0.13 && w[3] < -0.05 && w[3] > -0.13)
	fmt.Printf("%.1f\n", bias.Value.(optim.Host).F32)
	// Output:
	// alike: true
	// [-0.1 0.1]
}
