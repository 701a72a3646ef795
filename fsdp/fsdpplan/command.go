package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gofsdp/gofsdp/fsdp/plan"
)

// Exit statuses.
const (
	exitError = 1
	exitUsage = 2
)

// Bounds of a plan, which takes less than a minute. A job of package comm has fewer ranks than
// mostRanks.
const (
	mostSeq     = 1 << 20
	mostBatch   = 1 << 16
	mostRanks   = 1 << 20
	mostNumbers = 32 // of ranks
)

// A usageError is an invalid command line.
type usageError struct{ error }

// flags are the values of the flags.
type flags struct {
	model, hf, cluster, ranks, memory string
	seq, batch, top, threads          int
	precision, optimizer              string
	compare, live                     bool
	calibrate, transport              string
	trace, svg                        string
}

// define defines the flags.
func (o *flags) define(f *flag.FlagSet) {
	f.StringVar(&o.model, "model", "", "`name` of a model: "+strings.Join(modelNames(), ", "))
	f.StringVar(&o.hf, "hf", "", "`directory` with the config.json of transformers, in place of -model; weights are not read")
	f.StringVar(&o.cluster, "cluster", "h100", "`name` of a cluster ("+strings.Join(clusterNames(), ", ")+"), or a file that plan.Parse reads")
	f.StringVar(&o.ranks, "ranks", "", "numbers of GPUs: a `list` such as 8,24, a doubling range 128..1024, or smallest, which searches for the fewest hosts that are enough, for up to a minute (default: the GPUs of one host)")
	f.IntVar(&o.seq, "seq", 0, "`tokens` of a sequence (default: the model's usual training length)")
	f.IntVar(&o.batch, "batch", 4, "`samples` per GPU and step; micro-batches of 1, 2, 4, … that divide it are tried")
	f.IntVar(&o.threads, "threads", 1, "`cores` of each rank, for a cluster whose devices are cores")
	f.StringVar(&o.precision, "precision", "bf16", "bf16, bf16-reduce (gradients are reduced in bf16, too), bf16-all (parameters and gradients are kept in bf16, too) or fp32")
	f.StringVar(&o.optimizer, "optimizer", "adamw", "adamw, 8bit or 16bit (AdamW with state in 8 or 16 bits), or sgd (without momentum)")
	f.StringVar(&o.memory, "memory", "", "`bytes` of a GPU in place of the cluster's, such as 40GB or 64GiB")
	f.IntVar(&o.top, "top", 3, "`rows` for each number of GPUs")
	f.BoolVar(&o.compare, "compare", false, "compare DDP, ZeRO-2, ZeRO-3 in one unit, ZeRO-3 by blocks, hybrid, and hpZ of ZeRO++ (not yet supported on GPUs)")
	f.BoolVar(&o.live, "live", false, "show the memory of the best step: by unit at the peak, and over time")
	f.StringVar(&o.calibrate, "calibrate", "", "measure this machine's cores for -ranks ranks (default: one per core), and write a `file` for -cluster; takes one or two minutes")
	f.StringVar(&o.transport, "transport", "goroutines", "transport of the ranks for -calibrate: goroutines, shm or tcp")
	f.StringVar(&o.trace, "trace", "", "write the best step as a trace to a `file` for https://ui.perfetto.dev")
	f.StringVar(&o.svg, "svg", "", "write a picture of the best step to a `file`")
}

// run is fsdpplan. It returns the exit status.
func run(args []string, out, errs io.Writer) int {
	f := flag.NewFlagSet("fsdpplan", flag.ContinueOnError)
	f.SetOutput(io.Discard) // errors are printed below
	var o flags
	o.define(f)
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(out, "usage: fsdpplan -model NAME | -hf DIR | -calibrate FILE [flags]\n\nFsdpplan predicts the best way to train a model on a cluster, without the cluster.\n\n")
		f.SetOutput(out)
		f.PrintDefaults()
		return 0
	case err != nil:
		err = usageError{err}
	case f.NArg() > 0:
		err = usageError{fmt.Errorf("unknown argument %q", f.Arg(0))}
	case o.calibrate != "":
		err = o.measure(out)
	default:
		err = o.run(out)
	}
	if err == nil {
		return 0
	}
	fmt.Fprintf(errs, "fsdpplan: %v\n", err)
	if errors.As(err, new(usageError)) {
		fmt.Fprintln(errs, "usage: fsdpplan -model NAME | -hf DIR | -calibrate FILE [flags]; -h lists them")
		return exitUsage
	}
	return exitError
}

// run answers the query of the flags.
func (o *flags) run(out io.Writer) error {
	q, ranks, err := o.query()
	if err != nil {
		return err
	}
	answers, err := q.answers(ranks)
	if err != nil {
		return err
	}
	r := &report{query: q, top: o.top}
	r.table(answers)
	few := answers[0]
	if o.ranks != smallest {
		if few, err = q.fewest(answers); err != nil {
			return err
		}
	}
	if few != nil {
		r.smallest(few)
		if few.fits == 0 && few != answers[0] { // explain adds the help of answers
			if err := r.help(few); err != nil {
				return err
			}
		}
	}
	if err := r.explain(answers); err != nil {
		return err
	}
	for _, a := range answers {
		if o.compare {
			if err := r.compare(a); err != nil {
				return err
			}
		}
		if o.live {
			r.live(a)
		}
	}
	fmt.Fprintln(&r.text)
	r.band(answers)
	if _, err := out.Write(r.text.Bytes()); err != nil {
		return err
	}
	return o.draw(q, answers[0])
}

// draw writes the files that the flags name.
func (o *flags) draw(q *query, a *answer) error {
	if o.trace == "" && o.svg == "" {
		return nil
	}
	if a.fits == 0 {
		return errors.New("nothing fits: there is no step for -trace or -svg")
	}
	st := newStep(q, a)
	return errors.Join(write(o.trace, st.trace), write(o.svg, st.svg))
}

// write writes a file, if name is not empty.
func write(name string, to func(io.Writer) error) error {
	if name == "" {
		return nil
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(to(f), f.Close())
}

// query returns the query of the flags, and its numbers of ranks.
func (o *flags) query() (*query, []int, error) {
	q := &query{batch: o.batch, seq: o.seq, threads: o.threads, precision: o.precision, optimizer: o.optimizer}
	if (o.model == "") == (o.hf == "") {
		return nil, nil, usageError{errors.New("give -model or -hf")}
	}
	if o.batch < 1 || o.top < 1 || o.seq < 0 {
		return nil, nil, usageError{fmt.Errorf("-batch %d, -top %d and -seq %d must be positive", o.batch, o.top, o.seq)}
	}
	if o.batch > mostBatch {
		return nil, nil, usageError{fmt.Errorf("-batch %d: at most %d samples are planned", o.batch, mostBatch)}
	}
	if o.seq > mostSeq {
		return nil, nil, usageError{fmt.Errorf("-seq %d: at most %d tokens are planned", o.seq, mostSeq)}
	}
	if err := among("-precision", o.precision, precisions); err != nil {
		return nil, nil, err
	}
	if err := among("-optimizer", o.optimizer, newByName); err != nil {
		return nil, nil, err
	}
	var err error
	if q.cluster, err = cluster(o.cluster); err != nil {
		return nil, nil, err
	}
	most := 1
	for _, r := range q.cluster.Rates {
		most = max(most, r.Threads)
	}
	if o.threads < 1 || o.threads > most {
		return nil, nil, usageError{fmt.Errorf("-threads %d: %s was measured with 1 to %d threads per rank", o.threads, q.cluster.Name, most)}
	}
	if q.memory = q.cluster.Device.Memory; o.memory != "" {
		if q.memory, err = bytesOf(o.memory); err != nil {
			return nil, nil, err
		}
	}
	ranks := []int{q.host()}
	if o.ranks != "" && o.ranks != smallest {
		if ranks, err = numbers(o.ranks); err != nil {
			return nil, nil, err
		}
	}
	if len(ranks) > 1 && (o.trace != "" || o.svg != "") {
		return nil, nil, usageError{fmt.Errorf("-trace and -svg need a single number of ranks, but -ranks %s has %d", o.ranks, len(ranks))}
	}
	if o.hf != "" {
		q.subject, err = fromHF(o.hf)
	} else if q.subject, err = named(o.model, o.seq); err != nil {
		err = usageError{err}
	}
	if err == nil && q.seq == 0 {
		q.seq = q.subject.seq
	}
	if err == nil && o.ranks == smallest {
		ranks[0], err = q.smallest(1)
	}
	return q, ranks, err
}

// among checks that a flag has one of the given values.
func among[T any](name, value string, values map[string]T) error {
	if _, ok := values[value]; ok {
		return nil
	}
	return usageError{fmt.Errorf("%s %q; there are %s", name, value, strings.Join(slices.Sorted(maps.Keys(values)), ", "))}
}

func clusterNames() []string { return slices.Sorted(maps.Keys(plan.Clusters())) }

// cluster returns the cluster with that name, or the cluster in that file.
func cluster(name string) (*plan.Cluster, error) {
	if c := plan.Clusters()[name]; c != nil {
		return c, nil
	}
	text, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, usageError{fmt.Errorf("%q is neither a cluster nor a file; the clusters are %s", name, strings.Join(clusterNames(), ", "))}
	}
	if err != nil {
		return nil, err
	}
	c, err := plan.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}

// numbers parses -ranks.
func numbers(text string) (list []int, err error) {
	for _, part := range strings.Split(text, ",") {
		first, last, isRange := strings.Cut(part, "..")
		from, err := strconv.Atoi(first)
		to := from
		if isRange && err == nil {
			to, err = strconv.Atoi(last)
		}
		if err != nil || from < 1 || to < from {
			return nil, usageError{fmt.Errorf("-ranks %q: %q is neither a number nor a range such as 128..1024, nor is it smallest", text, part)}
		}
		if to > mostRanks {
			return nil, usageError{fmt.Errorf("-ranks %q: %d is more than the limit of %d ranks", text, to, mostRanks)}
		}
		for n := from; n <= to; n *= 2 {
			list = append(list, n)
		}
	}
	if len(list) > mostNumbers {
		return nil, usageError{fmt.Errorf("-ranks has %d numbers, the limit is %d", len(list), mostNumbers)}
	}
	return list, nil
}

// bytesOf parses a number of bytes with its unit.
func bytesOf(text string) (int, error) {
	for _, u := range []struct {
		suffix string
		bytes  float64
	}{{"GiB", 1 << 30}, {"GB", 1e9}, {"TB", 1e12}, {"MiB", 1 << 20}, {"MB", 1e6}} {
		if number, ok := strings.CutSuffix(text, u.suffix); ok {
			if x, err := strconv.ParseFloat(number, 64); err == nil && x > 0 && x*u.bytes < 1<<60 {
				return int(x * u.bytes), nil
			}
		}
	}
	return 0, usageError{fmt.Errorf("-memory %q is not a number with a unit (MB, MiB, GB, GiB, TB), such as 64GiB", text)}
}

// answers computes the answers for all numbers of ranks, concurrently.
func (q *query) answers(ranks []int) ([]*answer, error) {
	list, errs := make([]*answer, len(ranks)), make([]error, len(ranks))
	var wg sync.WaitGroup
	for i, n := range ranks {
		wg.Go(func() { list[i], errs[i] = q.answer(n) })
	}
	wg.Wait()
	return list, errors.Join(errs...)
}
