package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/internal/perfetto/perfettotest"
	"github.com/gofsdp/gofsdp/internal/text"
)

var update = flag.Bool("update", false, "write the golden outputs")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fsdpplan runs a command line and returns the exit status and what it printed.
func fsdpplan(args string) (status int, out, errs string) {
	var o, e bytes.Buffer
	status = run(strings.Fields(args), &o, &e)
	return status, o.String(), e.String()
}

// TestGolden compares whole outputs, but for the figures of published runs at their ends. The
// clusters are copies, so that those of package plan may be fitted anew.
func TestGolden(t *testing.T) {
	for name, args := range map[string]string{
		"gpt":   "-model gpt-175b -cluster testdata/a100-80.json -ranks 128,512 -batch 1",
		"llama": "-model llama-8b -cluster testdata/slow.json -ranks 8..16 -batch 1 -seq 2048 -compare -top 1",
		"t5":    "-model t5-11b -cluster testdata/a100-80.json -batch 1 -optimizer 8bit",
		"one":   "-model gpt-1.3b -cluster testdata/slow.json -ranks 1 -batch 1 -precision fp32 -optimizer sgd -memory 40GiB",
		"none":  "-model gpt-1t -cluster testdata/a100-80.json -memory 40GiB -ranks 128 -batch 1",
		"few":   "-model gpt-175b -cluster testdata/a100-80.json -batch 1 -precision bf16-all -optimizer sgd -top 1",
		"most":  "-model gpt-1t -cluster testdata/a100-80.json -ranks smallest -batch 1",
		"least": "-model gpt-125m -cluster testdata/slow.json -ranks smallest -batch 1 -seq 256 -memory 550MB -optimizer 16bit -top 1",
		"live":  "-model gpt-2.7b -cluster testdata/a100-80.json -ranks 8 -batch 1 -live -top 1",
		"hf":    "-hf ../nn/hf/testdata/llama -cluster testdata/slow.json -ranks 2 -batch 1 -seq 16",
	} {
		t.Run(name, func(t *testing.T) {
			status, out, errs := fsdpplan(args)
			require.Zero(t, status, errs)
			require.Empty(t, errs)
			require.Empty(t, text.Wider(out, columns))
			out, rest, found := strings.Cut(out, plan.Published())
			require.True(t, found, "the figures of published runs are at the end")
			out = "$ fsdpplan " + args + "\n" + out + rest
			path := filepath.Join("testdata", name+".txt")
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(out), 0o666))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, string(want), out, "go test ./fsdp/fsdpplan -update writes %s", path)
		})
	}
}

// TestSession compares the session in the comment of the command with its output.
func TestSession(t *testing.T) {
	comment, err := os.ReadFile("main.go")
	require.NoError(t, err)
	_, session, found := strings.Cut(string(comment), "//	$ fsdpplan ")
	require.True(t, found)
	session, _, found = strings.Cut(session, "//\n// Then come the strategies")
	require.True(t, found)
	args, want, _ := strings.Cut(session, "\n")
	want = strings.ReplaceAll(strings.ReplaceAll(want, "//	", ""), "//\n", "\n")
	status, out, errs := fsdpplan(args)
	require.Zero(t, status, errs)
	require.Equal(t, want, out[:min(len(want), len(out))], "copy what it prints")
}

// TestSmallest: on one host less than -ranks smallest finds, nothing fits.
func TestSmallest(t *testing.T) {
	const args = "-model gpt-125m -cluster testdata/slow.json -batch 1 -seq 256 -memory 550MB -top 1 -ranks "
	_, out, _ := fsdpplan(args + smallest)
	found := regexp.MustCompile(`(?m)^(\d+) GPUs are the fewest`).FindStringSubmatch(out)
	require.Len(t, found, 2, out)
	ranks, err := strconv.Atoi(found[1])
	require.NoError(t, err)
	require.Greater(t, ranks, 8)
	_, out, _ = fsdpplan(args + strconv.Itoa(ranks-8))
	require.Contains(t, out, strconv.Itoa(ranks-8)+" nothing fits")
}

// TestErrors has command lines that make no sense, and what says so.
func TestErrors(t *testing.T) {
	for args, want := range map[string]string{
		"":                                  "give -model or -hf",
		"-model gpt-175b -hf .":             "give -model or -hf",
		"-model gpt-4":                      `unknown model "gpt-4"; the models are gpt-125m, gpt-350m, gpt-760m, gpt-1.3b`,
		"-model gpt-125m -cluster tpu":      `"tpu" is neither a cluster nor a file; the clusters are a100-40, a100-80, b200`,
		"-model gpt-125m -precision fp8":    `-precision "fp8"; there are bf16, bf16-all, bf16-reduce, fp32`,
		"-model gpt-125m -optimizer lion":   `-optimizer "lion"; there are 16bit, 8bit, adamw, sgd`,
		"-model gpt-125m -ranks 8..4":       `"8..4" is neither a number nor a range`,
		"-model gpt-125m -ranks 8,x":        `"x" is neither a number nor a range`,
		"-model gpt-125m -ranks 0":          `"0" is neither`,
		"-model gpt-125m -memory 40":        `-memory "40" is not a number with a unit`,
		"-model gpt-125m -memory -1GB":      `-memory "-1GB" is not a number`,
		"-model gpt-125m -batch 0":          "-batch 0",
		"-model gpt-125m -threads 2":        "-threads 2: h100 was measured with 1 to 1 threads per rank",
		"-hf . -cluster epyc-2 -threads 3":  "-threads 3: epyc-2 was measured with 1 to 2 threads per rank",
		"-model gpt-125m -ranks 1,2 -svg x": "need a single number of ranks",

		"-model gpt-125m -seq 20000000":                 "-seq 20000000: at most 1048576 tokens are planned",
		"-model gpt-125m -batch 1000000":                "-batch 1000000: at most 65536 samples are planned",
		"-model gpt-125m -ranks 1..100000000":           `-ranks "1..100000000": 100000000 is more than the limit of 1048576 ranks`,
		"-model gpt-125m -ranks 1..9223372036854775807": "is more than the limit of 1048576 ranks",
		"-model gpt-125m -ranks 1..1048576,1..1048576":  "-ranks has 42 numbers, the limit is 32",
		"-model gpt-125m -cluster a100 -what":           "flag provided but not defined",
		"-model gpt-125m more":                          `unknown argument "more"`,
		"-calibrate x -model gpt-125m":                  "-calibrate measures this machine: it cannot be combined with -model",
		"-calibrate x -transport pigeon":                `-transport "pigeon"; there are goroutines, shm, tcp`,
		"-calibrate x -ranks 1,2":                       "needs a single number of ranks, but -ranks 1,2 has 2",
		"-calibrate x -ranks 0":                         `"0" is neither`,
		"-calibrate x -memory 3":                        `-memory "3" is not`,
	} {
		status, out, errs := fsdpplan(args)
		require.Equal(t, exitUsage, status, args)
		require.Empty(t, out, args)
		require.Contains(t, errs, want, args)
	}
	for args, want := range map[string]string{
		"-hf testdata": "config.json",
		"-model gpt-125m -cluster command_test.go":                             "command_test.go: plan: reading a cluster: ",
		"-model gpt-1t -ranks 8 -batch 1 -svg " + t.TempDir() + "/x":           "nothing fits: there is no step",
		"-model gpt-125m -ranks 8 -batch 1 -svg " + t.TempDir() + "/missing/x": "missing/x",
		"-hf ../nn/hf/testdata/llama -ranks 2 -batch 1 -trace " + t.TempDir():  "is a directory",
		"-hf ../nn/hf/testdata/gpt2 -ranks 2 -batch 1 -seq 1000000":            "2 ranks: plan: ",
	} {
		status, _, errs := fsdpplan(args)
		require.Equal(t, exitError, status, args)
		require.Contains(t, errs, want, args)
	}
	status, out, _ := fsdpplan("-h")
	require.Zero(t, status)
	require.Contains(t, out, "-compare")
	var e bytes.Buffer
	require.Equal(t, exitError, run(strings.Fields("-model gpt-125m -ranks 1 -batch 1"), full{}, &e))
	require.Contains(t, e.String(), errFull.Error())
}

type full struct{}

var errFull = errors.New("full")

func (full) Write([]byte) (int, error) { return 0, errFull }

// TestNumbers reads lists and ranges.
func TestNumbers(t *testing.T) {
	for s, want := range map[string][]int{"8": {8}, "8,24": {8, 24}, "128..1024": {128, 256, 512, 1024}, "3..13,1": {3, 6, 12, 1}} {
		got, err := numbers(s)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for s, want := range map[string]int{"40GB": 40e9, "64GiB": 64 << 30, "1.5TB": 15e11, "100MB": 1e8} {
		got, err := bytesOf(s)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// TestCores asks about a host without GPUs, whose ranks share memory.
func TestCores(t *testing.T) {
	status, out, errs := fsdpplan("-model gpt-125m -cluster epyc-2 -seq 256 -batch 1 -precision fp32")
	require.Zero(t, status, errs)
	require.Contains(t, out, "epyc-2: core of AMD EPYC")
	require.Contains(t, out, "memory between the 2 of a host")

	status, out, errs = fsdpplan("-hf ../nn/hf/testdata/gpt2 -cluster epyc-2 -batch 1 -precision fp32 -threads 2")
	require.Zero(t, status, errs)
	require.Contains(t, strings.Join(strings.Fields(out), " "), "core of AMD EPYC, 2 for each rank, with", "and so one rank on two cores")
	require.Contains(t, out, "\n1 GPU: ")
}

// TestDraw writes a step of four passes, of which two are drawn, as a trace and as a picture, and
// compares both with the plan.
func TestDraw(t *testing.T) {
	dir := t.TempDir()
	trace, svg := filepath.Join(dir, "t.pftrace"), filepath.Join(dir, "t.svg")
	args := "-model gpt-125m -ranks 16 -batch 4 -memory 1.2GB"
	status, _, errs := fsdpplan(args + " -trace " + trace + " -svg " + svg)
	require.Zero(t, status, errs)

	m, err := named("gpt-125m", 0)
	require.NoError(t, err)
	c := plan.Clusters()["h100"]
	q := &query{subject: m, cluster: c, memory: 1.2e9, batch: 4, seq: 2048, precision: "bf16", optimizer: "adamw"}
	a, err := q.answer(16)
	require.NoError(t, err)
	require.Equal(t, 4, a.choices[0].Passes, "there is memory for one sample")
	line := a.best.Pass.Time(c, 2)

	rows := perfettotest.Read(t, trace)
	require.Len(t, rows, 3)
	events := 0
	for i, name := range []string{"compute", "communication"} {
		require.Equal(t, "rank 0, predicted", rows[i].Process)
		require.Equal(t, name, rows[i].Name)
		events += len(rows[i].Slices)
		for j, s := range rows[i].Slices[1:] {
			require.GreaterOrEqual(t, s.Begin, rows[i].Slices[j].End, "a stream does one thing at a time")
		}
	}
	require.Len(t, line.Events, events)
	last := rows[0].Slices[len(rows[0].Slices)-1]
	require.Equal(t, "optimizer", last.Name)
	require.InDelta(t, 1e9*line.Total, last.End, 10)
	most := 0
	for _, n := range rows[2].Counts {
		most = max(most, n.N)
	}
	require.Equal(t, a.choices[0].Memory, most, "memory at the peak")
	end := rows[2].Counts[len(rows[2].Counts)-1]
	require.Equal(t, peak(a.best.Pass).Shard+peak(a.best.Pass).State, end.N, "what lasts")

	text, err := os.ReadFile(svg)
	require.NoError(t, err)
	elements := 0
	for d := xml.NewDecoder(bytes.NewReader(text)); ; elements++ {
		if _, err = d.Token(); err != nil {
			break
		}
	}
	require.ErrorIs(t, err, io.EOF)
	require.Greater(t, elements, len(line.Events))
	for _, class := range classes {
		require.Contains(t, string(text), class.name)
	}
	for _, a := range activities {
		require.Contains(t, string(text), a.name)
	}
}

// small is a step that is drawn with a few shapes.
func small() *step {
	return &step{
		query:   &query{subject: &subject{name: "tiny & small"}, cluster: &plan.Cluster{Name: "h100"}, memory: 8e9},
		setting: plan.Setting{Strategy: "FullShard", Units: "blocks", Micro: 1, Passes: 1, Recompute: "none"},
		ranks:   2,
		pass:    &plan.Pass{Ops: []plan.Op{{Kind: plan.Gather}, {Kind: plan.Forward}}},
		line: &plan.Timeline{Total: 0.025, Events: []plan.Event{
			{Stream: plan.Communicating, Op: 0, End: 0.01},
			{Stream: plan.Computing, Op: 1, End: 0.01, Waiting: true},
			{Stream: plan.Computing, Op: 1, Begin: 0.01, End: 0.02},
			{Stream: plan.Computing, Op: -1, Begin: 0.02, End: 0.025},
		}},
		samples: []plan.Sample{{Live: plan.Memory{Shard: 1e9, State: 2e9}}, {At: 0.01, Live: plan.Memory{Shard: 1e9, State: 2e9, Gathered: 1e9, Work: 5e8}}},
	}
}

// TestPicture compares the picture of a small step with testdata/step.svg.
func TestPicture(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, small().svg(&out))
	const path = "testdata/step.svg"
	if *update {
		require.NoError(t, os.WriteFile(path, out.Bytes(), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), out.String(), "go test ./fsdp/fsdpplan -update writes %s", path)
}

// TestTextFits checks that no edge cuts a label, also if the title is long or the last tick stands
// at the end.
func TestTextFits(t *testing.T) {
	for _, total := range []float64{1e-7, 0.02, 0.1, 123, 5000} {
		for _, memory := range []int{1e6, 8e9, 1e12} {
			st := small()
			st.line.Total, st.memory, st.setting.Passes = total, memory, 16
			st.name, st.cluster.Name, st.ranks, st.setting.Units = "gpt-175b", "h100-measured, a cluster with a long name", 1<<20, "2 blocks"
			p := st.picture()
			for _, l := range p.Labels {
				length := letter * l.Size * float64(utf8.RuneCountInString(l.Text))
				from := l.X - map[string]float64{"start": 0, "middle": length / 2, "end": length}[l.Anchor]
				require.GreaterOrEqual(t, from, -1.0, l)
				require.LessOrEqual(t, from+length, float64(width+1), l)
				require.True(t, l.Y > l.Size && l.Y < height-l.Size/2, l)
			}
		}
	}
}

// TestTicks checks that ticks are round numbers, neither few nor many.
func TestTicks(t *testing.T) {
	for _, most := range []float64{1e-6, 0.0199, 0.02, 1, 1.99, 4.99, 5, 9.99, 12345} {
		list := ticks(most)
		require.Zero(t, list[0])
		require.LessOrEqual(t, list[len(list)-1], most)
		require.True(t, len(list) >= 4 && len(list) <= 11, "%v: %v", most, list)
	}
	require.InDeltaSlice(t, []float64{0, 2, 4, 6, 8, 10, 12}, ticks(13), 1e-12)
}

// TestModels plans every model by name on as many GPUs as hold it, and counts its parameters.
func TestModels(t *testing.T) {
	billions := map[string]float64{
		"gpt-125m": 0.1634, "gpt-350m": 0.41, "gpt-760m": 0.84, "gpt-1.3b": 1.42, "gpt-2.7b": 2.8, "gpt-6.7b": 6.9, "gpt-13b": 13.1, "gpt-175b": 175.2, "gpt-1t": 1009,
		"llama-8b": 8.03, "llama-70b": 70.55, "llama-405b": 405.85, "t5-11b": 11.3,
	}
	require.Len(t, modelNames(), len(billions))
	for _, name := range modelNames() {
		m, err := named(name, 0)
		require.NoError(t, err)
		q := &query{subject: m, cluster: plan.Clusters()["b200"], seq: m.seq, precision: "bf16", optimizer: "adamw"}
		p, err := q.plan(1024, plan.Setting{Units: "blocks", Strategy: "FullShard", Prefetch: 1, Recompute: "full", Micro: 1, Passes: 1})
		require.NoError(t, err, name)
		require.InEpsilon(t, billions[name]*1e9, p.Params, 0.02, name)
		require.NoError(t, p.Pass.Fits(q.cluster.Device.Memory), name)
	}
}

// FuzzFlags reads any flags: every plan is within the bounds.
func FuzzFlags(f *testing.F) {
	f.Add("8,24", "4096", "4", "64GiB", "1")
	f.Add("1..1048576", "1048576", "65536", "1e999GB", "2")
	f.Add("1..9223372036854775807", "-1", "0", "-1GB", "")
	f.Add(",", "", "9999999999", "NaNMB", "x")
	f.Fuzz(func(t *testing.T, ranks, seq, batch, memory, threads string) {
		var o flags
		set := flag.NewFlagSet("", flag.ContinueOnError)
		set.SetOutput(io.Discard)
		o.define(set)
		if set.Parse([]string{"-model=gpt-125m", "-ranks=" + ranks, "-seq=" + seq, "-batch=" + batch, "-memory=" + memory, "-threads=" + threads}) != nil {
			return
		}
		q, list, err := o.query()
		if err != nil {
			require.ErrorAs(t, err, new(usageError))
			return
		}
		require.True(t, 1 <= q.seq && q.seq <= mostSeq && 1 <= q.batch && q.batch <= mostBatch && q.memory > 0 && len(list) <= mostNumbers, "%+v", q)
		for _, n := range list {
			require.True(t, 1 <= n && n <= mostRanks, n)
		}
	})
}
