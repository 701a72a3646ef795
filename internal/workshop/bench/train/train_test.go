package train

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/calibrate"
	"github.com/gofsdp/gofsdp/internal/text"
)

// TestMain is a process of a contest where this program has started itself as one, and where it is
// taken for Python, which is given a script.
func TestMain(m *testing.M) {
	args := os.Args[1:]
	switch {
	case len(args) == 2 && args[0] == RankCommand:
		serve(args[1])
	case len(args) == 4 && args[2] == "-c":
		fmt.Println("0.0")
	case len(args) == 4 && args[0] == "-W":
		// It trains as PyTorch is told to, only always in float32.
		var j job
		if err := json.Unmarshal([]byte(args[3]), &j); err != nil {
			panic(err)
		}
		j.Precision = float32s
		text, err := json.Marshal(j)
		if err != nil {
			panic(err)
		}
		serve(string(text))
	default:
		os.Exit(m.Run())
	}
}

func serve(text string) {
	if err := Serve(context.Background(), os.Stdin, os.Stdout, text); err != nil {
		panic(err)
	}
}

// little is a model of which most is parameters.
var little = size{name: "little", Layers: 4, Dim: 32, Heads: 2, Context: 8, Batch: 8, Vocab: 32}

// TestBench runs a few turns on the smallest size, in all ways but that PyTorch is played by this
// program.
func TestBench(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out, options{sizes: []size{little}, match: regexp.MustCompile(""), python: self, compile: true}))
	tables := strings.Split(strings.TrimSpace(out.String()), "\n\n")
	require.Len(t, tables, 4)
	require.Regexp(t, `^.*, \d+ cores, load [\d.]+\nPyTorch 0\.0: .*$`, tables[0])
	require.Regexp(t, `^(\d+m)?\d+s in all, load [\d.]+$`, tables[3])
	ours := []string{"1 rank", "1 rank, 2 threads", "2 ranks, goroutines", "2 ranks, processes", "2 ranks, over TCP", "2 ranks, NoShard (DDP)"}
	for i, names := range [][]string{
		append(slices.Clone(ours), "PyTorch", "PyTorch, compiled", "PyTorch, 2 threads", "PyTorch DDP", "PyTorch FSDP2"),
		slices.Concat([]string{"1 rank, float32"}, ours, []string{"PyTorch, autocast", "PyTorch", "PyTorch, compiled, autocast",
			"PyTorch, compiled", "PyTorch, 2 threads", "PyTorch DDP", "PyTorch FSDP2"}),
	} {
		rows := strings.Split(tables[1+i], "\n")
		require.Regexp(t, `^little, `+[]string{"float32", "bfloat16"}[i]+`: 4 layers, 32 channels, 2 heads, 8 x 8 tokens, 0\.0 GFLOP a step$`, rows[0])
		for k, name := range names {
			ratio := ""
			if strings.HasPrefix(name, "PyTorch") {
				ratio = ` +[\d.]+x`
			}
			require.Regexp(t, `^  `+regexp.QuoteMeta(name)+` +[12] +[\d.]+ \([\d.]+\.\.[\d.]+, 3\) +\d+ +[\d.]+ +(-|[\d.]+%) +[\d.]+x`+ratio+` *$`, rows[2+k])
		}
	}
}

// TestOthersTrainAlike refuses candidates that do not train the same model.
func TestOthersTrainAlike(t *testing.T) {
	s := little
	ways := lineup(float32s, nil, regexp.MustCompile("goroutines"))
	require.Len(t, ways, 2)
	c := &contest{size: s}
	for _, part := range []int{s.Batch, s.Batch / 2} {
		s.Batch = part
		next, err := start(t.Context(), s, ways[0], nil, t.TempDir(), false)
		require.NoError(t, err)
		defer next.close()
		c.list = append(c.list, next)
	}
	require.ErrorContains(t, c.takeTurns(0), "the losses differ")
}

// TestCandidateEnds names a process that fails.
func TestCandidateEnds(t *testing.T) {
	ways := lineup(float32s, nil, regexp.MustCompile("processes"))
	ways[1].Precision = "none"
	c, err := start(t.Context(), size{}, ways[1], nil, t.TempDir(), false)
	require.NoError(t, err)
	defer c.close()
	_, err = c.run(0)
	require.ErrorContains(t, err, "2 ranks, processes: process 0: 0: the process has ended")
}

// TestOverlap prints the table for a round.
func TestOverlap(t *testing.T) {
	var out strings.Builder
	require.NoError(t, overlap(&out, little, 1e9, 1, 0))
	rows := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
	require.Len(t, rows, 2+3)
	require.Contains(t, rows[0], "over a link of 1000 MB/s")
	for i, prefetch := range []string{"0", "1", "2"} {
		require.Regexp(t, `^  `+prefetch+`( +[\d.]+){6} +-?\d+%$`, rows[2+i])
	}
}

// TestFormats prints the table of trainings that are over after a step, and ends those that do not
// learn.
func TestFormats(t *testing.T) {
	var out strings.Builder
	text, err := goSource(".", 5000)
	require.NoError(t, err)
	require.Len(t, text, 5000)
	j := journey{size: little, prefetch: 1, bandwidth: 1e9, text: text, loss: 100, most: 1}
	j.Vocab = 256
	require.NoError(t, travel(&out, j, regexp.MustCompile("bfloat16|int8$")))
	rows := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
	require.Len(t, rows, 2+5)
	for i, name := range []string{"bfloat16", "bfloat16, gradients float32", "int8", "bfloat16 computed, bfloat16", "bfloat16 computed, int8"} {
		require.Regexp(t, `^  `+name+`( +[\d.]+){3} +1( +[\d.]+)( +[\d.]+x){2}$`, rows[2+i])
	}
	j.loss = 0
	require.ErrorContains(t, travel(&out, j, regexp.MustCompile("^int8$")), "int8: a loss of ")
	j.text = text[:j.Context]
	require.ErrorContains(t, travel(&out, j, regexp.MustCompile("^int8$")), "want more than")
}

// TestMemory prints the table, which fails where the plan and the counts differ, and compares its
// first rows on a model of which most is parameters.
func TestMemory(t *testing.T) {
	var out strings.Builder
	require.NoError(t, memory(&out, little))
	require.Empty(t, text.Wider(out.String(), 80))
	rows := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, rows, 3+4+1+4+4+2+1+4)
	counted := func(row string) (mb float64) {
		fields := strings.Fields(row)
		mb, err := strconv.ParseFloat(fields[len(fields)-2], 64)
		require.NoError(t, err)
		return mb
	}
	for i, name := range []string{`NoShard \(DDP\)`, "FullShard in one unit", "FullShard by blocks", "the same, frozen base"} {
		require.Regexp(t, `^  `+name+` +2( +[\d.]+){6}$`, rows[3+i])
		if i > 0 {
			require.Less(t, counted(rows[3+i]), counted(rows[2+i]))
		}
	}
	for _, row := range rows[8:] {
		require.Regexp(t, `(over|Shard).* \d+( +[\d.]+){6}$`, row)
	}
}

// TestMemoryInComment compares the table in the comment of package fsdp with the output of "make
// memory".
func TestMemoryInComment(t *testing.T) {
	comment, err := os.ReadFile("../../../../fsdp/doc.go")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(comment), "//\n//	tiny: ")
	require.True(t, found)
	table, found = strings.CutSuffix(table, "package fsdp\n")
	require.True(t, found)
	var out strings.Builder
	require.NoError(t, Memory(&out, nil))
	require.Equal(t, out.String(), strings.ReplaceAll("//	tiny: "+table, "//	", ""), "copy what make memory prints into fsdp/doc.go")
}

// TestJoin prints the table for a round.
func TestJoin(t *testing.T) {
	var out strings.Builder
	require.NoError(t, joining(&out, []size{little}, 1, 0))
	rows := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
	require.Len(t, rows, 2+4+2)
	for i, mode := range []string{"plain loop", "Join, both have batches", "Join, rank 1 has none", "JoinCalls in Join"} {
		require.Regexp(t, `^  `+mode+` +[\d.]+ \([\d.]+\.\.[\d.]+, 1\) +[\d.]+% +[\d.]+ +[\d.]+%$`, rows[2+i])
	}
	require.Regexp(t, `^  an exchange of flags takes [\d.]+ µs, [\d.]+% of a step; JoinCalls without a call [\d.]+ µs, [\d.]+%$`, rows[7])
	require.Regexp(t, `^  JoinCalls in Join takes [\d.]+% of the time of Join alone$`, rows[6])
	require.ErrorContains(t, Join(&out, []string{"-size", "huge"}), `unknown size "huge"`)
}

func TestRunRefuses(t *testing.T) {
	for _, c := range []struct {
		want string
		args []string
	}{
		{`unknown size "huge"`, []string{"-size", "huge"}},
		{"missing closing", []string{"-run", "("}},
		{`unexpected argument "x"`, []string{"x"}},
		{"has no PyTorch", []string{"-torch", "/dev/null"}},
	} {
		require.ErrorContains(t, Run(t.Context(), new(strings.Builder), c.args), c.want)
	}
}

// BenchmarkMemoryCheckpoint makes steps of small on two ranks, in turns with steps after which each
// rank keeps the step in memory. It reports the medians, and how much longer the latter take.
func BenchmarkMemoryCheckpoint(b *testing.B) {
	ctx, small := context.Background(), sizes[slices.IndexFunc(sizes, func(s size) bool { return s.name == "small" })]
	for _, precision := range []precision{float32s, bfloat16s} {
		b.Run(string(precision), func(b *testing.B) {
			groups := comm.Local(2)
			trainers, last := make([]*trainer, len(groups)), make([]fsdp.MemoryCheckpoint, len(groups))
			c, err := newRanks(groups, func(g comm.Group) (func() error, error) {
				cfg := fsdp.Config{Group: g, Threads: 1, WrapPolicy: byBlocks, Precision: precisions[precision], Activations: fsdp.Activations{Save: fsdp.WrapEach()}}
				t, err := newTrainer(ctx, small, cfg, small.Batch/len(groups))
				if err != nil {
					return nil, err
				}
				trainers[g.Rank()] = t
				return t.step, nil
			})
			require.NoError(b, err)
			defer func() { require.NoError(b, c.close()) }()
			step := func(save bool) time.Duration {
				begin := time.Now()
				require.NoError(b, c.step())
				if save {
					require.NoError(b, calibrate.Each(len(groups), func(i int) error { return last[i].Save(ctx, trainers[i].model, trainers[i].opt, nil) }))
				}
				return time.Since(begin)
			}
			step(true) // the first step compiles, and the first Save allocates
			var times [2][]time.Duration
			for b.Loop() {
				times[0], times[1] = append(times[0], step(false)), append(times[1], step(true))
			}
			for i := range times {
				slices.Sort(times[i])
			}
			median := func(i int) float64 { return times[i][len(times[i])/2].Seconds() * 1e3 }
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(0), "ms/step")
			b.ReportMetric(median(1), "ms/step-and-Save")
			b.ReportMetric(100*(median(1)/median(0)-1), "%-longer")
		})
	}
}
