package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// edges has a row for every package: what it may import of this module, and "gorgonia" if it may
// import Gorgonia or its tensors. Imports of tests do not count; those of files behind build tags
// do. A row has what is used and no more.
var edges = map[string]string{
	// Leaves.
	"internal/arena":                 "",
	"internal/arch":                  "",
	"internal/auth":                  "internal/text",
	"internal/backoff":               "internal/shm",
	"internal/caught":                "",
	"internal/checksum":              "",
	"internal/text":                  "",
	"internal/device":                "",
	"internal/gpu":                   "gorgonia internal/arena internal/blaslt internal/device internal/exec internal/gpu/kernels internal/half internal/kernel internal/kernel/vec internal/ops",
	"internal/gpu/gputest":           "gorgonia internal/blaslt internal/device internal/exec internal/gpu internal/gpudouble internal/half internal/kernel",
	"internal/gpu/kernels":           "",
	"internal/gpu/kernels/nvrtc":     "",
	"internal/gpudouble":             "",
	"internal/half":                  "",
	"internal/launch":                "internal/text",
	"internal/perfetto":              "",
	"internal/perfetto/perfettotest": "",
	"internal/regular":               "",
	"internal/peak":                  "internal/kernel/gemm",
	"internal/phase":                 "internal/launch",
	"internal/rng":                   "",
	"internal/shm":                   "",
	"shard":                          "",

	// Computation.
	"internal/kernel":          "internal/backoff internal/half internal/kernel/gemm internal/kernel/scores internal/kernel/vec",
	"internal/kernel/bf16":     "internal/half internal/kernel internal/kernel/vec",
	"internal/kernel/gemm":     "internal/arena internal/half",
	"internal/kernel/gemm/asm": "internal/kernel/neon",
	"internal/kernel/neon":     "",
	"internal/kernel/scores":   "internal/half",
	"internal/kernel/vec":      "internal/half",
	"internal/kernel/vec/asm":  "internal/kernel/neon",
	"internal/exec":            "gorgonia internal/arena internal/caught internal/half internal/kernel internal/kernel/bf16 internal/kernel/vec internal/rng",
	"internal/exec/exectest":   "gorgonia internal/exec internal/half",
	"internal/ops":             "gorgonia internal/exec internal/half internal/kernel internal/kernel/bf16 internal/kernel/vec",
	"internal/program":         "internal/arena",

	// Devices.
	"internal/blaslt": "internal/device",

	// Files.
	"internal/checkpoint":         "internal/safetensors",
	"internal/checkpoint/crashfs": "internal/checkpoint",
	"internal/hashes":             "internal/checksum",
	"internal/mapped":             "internal/arena",
	"internal/safetensors":        "internal/half",

	// Groups of ranks.
	"comm":                    "comm/internal/limit comm/internal/local comm/internal/session comm/internal/sharedmem comm/internal/tcp comm/transport internal/auth internal/launch internal/mesh internal/quorum internal/store internal/text",
	"comm/commtest":           "comm comm/transport",
	"comm/internal/grouptest": "comm/transport internal/mesh",
	"comm/internal/limit":     "comm/transport internal/backoff",
	"comm/internal/local":     "comm/internal/park comm/transport internal/backoff",
	"comm/internal/park":      "",
	"comm/internal/session":   "comm/internal/limit comm/transport internal/mesh internal/text",
	"comm/internal/sharedmem": "comm/internal/limit comm/internal/park comm/internal/session comm/internal/ticket comm/transport internal/backoff internal/shm",
	"comm/internal/tcp":       "comm/internal/session comm/internal/tree comm/transport internal/backoff internal/checksum internal/half internal/launch internal/mesh internal/store internal/text",
	"comm/internal/ticket":    "",
	"comm/internal/tree":      "",
	"comm/transport":          "comm/internal/park comm/internal/ticket comm/internal/tree internal/half internal/kernel/vec internal/mesh internal/shm internal/text",
	"comm/mpi":                "comm comm/transport internal/backoff internal/launch",
	"internal/mesh":           "internal/auth internal/checksum internal/store",
	"internal/quorum":         "internal/auth internal/mesh internal/store",
	"internal/simnet":         "",
	"internal/store":          "internal/auth",
	"nccl":                    "comm comm/transport internal/backoff internal/device",

	// The library.
	"optim/vec":       "internal/half internal/kernel/vec",
	"optim":           "comm internal/half internal/kernel/gemm internal/kernel/vec internal/rng optim/vec shard",
	"optim/optimtest": "optim optim/vec",
	"fsdp": "gorgonia comm fsdp/internal/engine fsdp/internal/layout fsdp/internal/provenance fsdp/internal/ranks fsdp/internal/record fsdp/internal/state fsdp/internal/timeline fsdp/plan fsdp/profile " +
		"internal/arena internal/caught internal/checkpoint internal/exec internal/kernel internal/kernel/vec internal/launch internal/phase internal/program internal/rng internal/text optim shard",
	"fsdp/gpu":                     "comm fsdp fsdp/internal/engine fsdp/internal/engine/gpu internal/launch nccl",
	"fsdp/plan":                    "",
	"fsdp/profile":                 "comm fsdp/plan internal/perfetto internal/text",
	"fsdp/internal/accept/gpu":     "",
	"fsdp/internal/accept/faults":  "",
	"fsdp/internal/accept/join":    "",
	"fsdp/internal/accept/memory":  "",
	"fsdp/internal/accept/observe": "",
	"fsdp/internal/accept/state":   "",
	"fsdp/internal/accept/parity":  "",
	"fsdp/internal/accept/kit": "gorgonia comm comm/transport fsdp fsdp/internal/engine fsdp/internal/engine/fardevice fsdp/internal/engine/gpu fsdp/internal/state fsdp/nn internal/blaslt " +
		"internal/checkpoint internal/gpudouble internal/half internal/mapped nccl optim shard",
	"fsdp/internal/engine": "gorgonia comm comm/transport fsdp/internal/layout fsdp/internal/ranks fsdp/plan internal/arena internal/exec internal/half " +
		"internal/kernel/vec internal/mapped internal/ops internal/program optim optim/vec shard",
	"fsdp/internal/engine/fardevice": "comm/transport fsdp/internal/engine fsdp/internal/layout fsdp/internal/ranks internal/arena internal/exec " +
		"internal/program optim optim/vec",
	"fsdp/internal/engine/gpu": "comm comm/transport fsdp/internal/engine fsdp/internal/layout fsdp/internal/ranks internal/arena internal/backoff internal/exec " +
		"internal/gpu internal/half internal/kernel/vec internal/program nccl optim optim/vec",
	"fsdp/internal/state":      "comm fsdp/internal/layout fsdp/internal/ranks internal/checkpoint internal/checksum internal/launch internal/safetensors internal/text optim optim/vec shard",
	"fsdp/internal/layout":     "comm internal/kernel/vec internal/program shard",
	"fsdp/internal/provenance": "gorgonia",
	"fsdp/internal/ranks":      "comm comm/transport internal/caught",
	"fsdp/internal/record":     "comm fsdp/internal/engine fsdp/internal/layout internal/checksum internal/exec internal/hashes internal/launch internal/program optim",
	"fsdp/internal/simulate":   "",
	"fsdp/internal/timeline":   "comm comm/transport fsdp/internal/engine internal/launch internal/perfetto internal/program internal/regular",
	"fsdp/data":                "gorgonia fsdp fsdp/internal/provenance internal/caught internal/checksum internal/half internal/launch internal/rng internal/safetensors internal/text internal/phase",
	"fsdp/graph":               "gorgonia fsdp internal/caught internal/exec",
	"fsdp/generate":            "gorgonia fsdp",
	"fsdp/metrics":             "gorgonia comm internal/exec",
	"fsdp/monitor":             "comm fsdp fsdp/plan fsdp/profile internal/peak internal/regular",
	"fsdp/nn":                  "gorgonia comm fsdp fsdp/generate fsdp/op internal/kernel/vec",
	"fsdp/nn/hf":               "gorgonia fsdp fsdp/internal/state fsdp/nn fsdp/op internal/checkpoint internal/safetensors internal/phase",
	"fsdp/nn/hf/tokenizer":     "fsdp/nn/hf/tokenizer/internal/jinja internal/caught",
	"fsdp/op":                  "gorgonia internal/caught internal/exec internal/kernel internal/kernel/vec internal/ops",

	"fsdp/nn/hf/tokenizer/internal/jinja": "",

	// Commands and examples.
	"fsdp/fsdpckpt":       "internal/checkpoint internal/safetensors internal/text optim",
	"fsdp/fsdpdiff":       "internal/hashes",
	"fsdp/fsdpplan":       "comm fsdp fsdp/nn fsdp/nn/hf fsdp/plan fsdp/profile internal/calibrate internal/text optim",
	"fsdp/fsdprun":        "fsdp/profile internal/auth internal/launch internal/perfetto internal/quorum internal/regular internal/store internal/text",
	"examples/answers":    "comm fsdp fsdp/data fsdp/generate fsdp/metrics fsdp/monitor fsdp/nn fsdp/nn/hf fsdp/nn/hf/tokenizer optim",
	"examples/classify":   "comm fsdp fsdp/metrics fsdp/nn fsdp/nn/hf fsdp/nn/hf/tokenizer optim fsdp/data",
	"examples/cluster":    "",
	"examples/digits":     "comm fsdp fsdp/data fsdp/metrics fsdp/monitor fsdp/nn optim",
	"examples/embed":      "comm fsdp fsdp/data fsdp/nn fsdp/nn/hf fsdp/nn/hf/tokenizer optim",
	"examples/extending":  "gorgonia comm fsdp fsdp/data fsdp/op optim",
	"examples/finetune":   "gorgonia comm fsdp fsdp/data fsdp/generate fsdp/metrics fsdp/nn fsdp/nn/hf fsdp/nn/hf/tokenizer optim",
	"examples/fromgraph":  "gorgonia comm fsdp fsdp/graph optim",
	"examples/gpt":        "gorgonia comm fsdp fsdp/data fsdp/generate fsdp/gpu fsdp/metrics fsdp/monitor fsdp/nn fsdp/nn/hf/tokenizer optim",
	"examples/lora":       "gorgonia comm fsdp fsdp/data fsdp/nn optim",
	"examples/moe":        "gorgonia comm fsdp fsdp/data fsdp/nn optim",
	"examples/multimodal": "gorgonia comm fsdp fsdp/nn fsdp/op optim",
	"examples/offload":    "gorgonia fsdp fsdp/nn optim",
	"examples/survive":    "gorgonia comm fsdp fsdp/nn optim",
	"examples/t5":         "gorgonia comm fsdp fsdp/generate fsdp/metrics fsdp/nn optim",
	"examples/uneven":     "gorgonia comm fsdp fsdp/metrics fsdp/nn optim",

	// What measures and checks.
	"internal/calibrate": "gorgonia comm fsdp fsdp/nn fsdp/plan internal/exec internal/peak optim",
}

// gorgonia names Gorgonia in the rows.
const gorgonia = "gorgonia"

// overGorgonia lists the packages that may need Gorgonia, directly or through what they import.
// Nothing else may, so that groups, optimizers, schedules and kernels can be used without it.
var overGorgonia = strings.Fields(`
	examples/answers examples/classify examples/digits examples/embed examples/extending examples/finetune examples/fromgraph examples/gpt examples/lora examples/moe examples/multimodal examples/offload examples/survive examples/t5 examples/uneven
	fsdp fsdp/data fsdp/fsdpplan fsdp/generate fsdp/gpu fsdp/graph fsdp/internal/accept/kit fsdp/internal/engine fsdp/internal/engine/fardevice fsdp/internal/engine/gpu fsdp/internal/provenance fsdp/internal/record fsdp/internal/timeline fsdp/metrics fsdp/monitor fsdp/nn fsdp/nn/hf fsdp/op internal/calibrate internal/exec internal/exec/exectest internal/gpu internal/gpu/gputest internal/ops
`)

// pure lists the packages that only decide: they neither wait, nor start goroutines, nor read and
// write anything.
var pure = []string{"fsdp/internal/layout", "fsdp/plan", "internal/program", "shard"}

// impure are the packages that those may not import.
var impure = []string{"bufio", "context", "io/fs", "log", "net", "os", "sync", "syscall", "time"}

// own returns the directory of a package of this module.
func own(imported string) (dir string, ok bool) { return strings.CutPrefix(imported, module+"/") }

// graph returns, for each package of the module, what it imports as the rows name it.
func graph(t *testing.T) map[string][]string {
	g := make(map[string][]string)
	for _, f := range sources(t, product) {
		list := g[f.dir]
		for _, i := range f.imports() {
			if dir, ok := own(i); ok {
				list = append(list, dir)
			} else if strings.HasPrefix(i, "gorgonia.org/") {
				list = append(list, gorgonia)
			}
		}
		slices.Sort(list)
		g[f.dir] = slices.Compact(list)
	}
	return g
}

// checkEdges returns how a graph differs from the rows of a table.
func checkEdges(graph map[string][]string, table map[string]string) (faults []string) {
	for _, from := range slices.Sorted(maps.Keys(graph)) {
		row, ok := table[from]
		if !ok {
			faults = append(faults, from+" has no row")
			continue
		}
		allowed := strings.Fields(row)
		for _, to := range graph[from] {
			if !slices.Contains(allowed, to) {
				faults = append(faults, fmt.Sprintf("%s may not import %s", from, to))
			}
		}
		for _, to := range allowed {
			if !slices.Contains(graph[from], to) {
				faults = append(faults, fmt.Sprintf("%s does not import %s: take it out of the row", from, to))
			}
		}
	}
	for _, from := range slices.Sorted(maps.Keys(table)) {
		if _, ok := graph[from]; !ok {
			faults = append(faults, "there is no package "+from+": take out its row")
		}
	}
	return faults
}

// reach returns the way from a package to another in a graph, both included, or nil.
func reach(graph map[string][]string, from, to string) []string {
	seen := make(map[string]bool)
	var walk func(at string) []string
	walk = func(at string) []string {
		if at == to {
			return []string{at}
		}
		if seen[at] {
			return nil
		}
		seen[at] = true
		for _, next := range graph[at] {
			if way := walk(next); way != nil {
				return append([]string{at}, way...)
			}
		}
		return nil
	}
	return walk(from)
}

// checkGorgonia returns the packages that need Gorgonia and may not, and those that may and do not.
func checkGorgonia(graph map[string][]string, may []string) (faults []string) {
	for _, from := range slices.Sorted(maps.Keys(graph)) {
		way := reach(graph, from, gorgonia)
		switch {
		case way != nil && !slices.Contains(may, from):
			faults = append(faults, "needs Gorgonia: "+strings.Join(way, " -> "))
		case way == nil && slices.Contains(may, from):
			faults = append(faults, from+" does not need Gorgonia: take it out of the list")
		}
	}
	for _, p := range may {
		if graph[p] == nil {
			faults = append(faults, "there is no package "+p+" over Gorgonia: take it out of the list")
		}
	}
	return faults
}

// TestEdges checks the imports of every package.
func TestEdges(t *testing.T) {
	for _, fault := range checkEdges(graph(t), edges) {
		t.Error(fault)
	}
}

// TestExamplesCanBeCopied checks that examples need no package that other modules cannot import, so
// that a copy of an example builds anywhere.
func TestExamplesCanBeCopied(t *testing.T) {
	for _, f := range sources(t, func(f *file) bool { return product(f) && strings.HasPrefix(f.dir, "examples/") }) {
		for _, i := range f.imports() {
			if dir, ok := own(i); ok && (strings.HasPrefix(dir, "examples/") || slices.Contains(strings.Split(dir, "/"), "internal")) {
				t.Errorf("%s imports %s", f.path, dir)
			}
		}
	}
}

// TestWhoNeedsGorgonia keeps Gorgonia behind the packages that know its defects, however it would
// come in.
func TestWhoNeedsGorgonia(t *testing.T) {
	for _, fault := range checkGorgonia(graph(t), overGorgonia) {
		t.Error(fault)
	}
	for _, f := range sources(t, product) {
		if slices.Contains(f.imports(), "gorgonia.org/cu") {
			t.Errorf("%s imports gorgonia.org/cu, which ends the process where there is no driver", f.path)
		}
	}
}

// TestHostNeedsNoDriver keeps the GPU engine out of programs that compute on processors alone.
func TestHostNeedsNoDriver(t *testing.T) {
	g := graph(t)
	require.NotNil(t, reach(g, "fsdp/gpu", "internal/device"), "the way that users of GPUs take")
	for _, from := range []string{"fsdp", "fsdp/nn", "fsdp/nn/hf", "fsdp/generate", "fsdp/monitor", "optim", "comm"} {
		require.Nil(t, reach(g, from, "internal/device"), from)
	}
}

// TestRulesRefuse checks that the rules see what they are there for: an import that nobody allowed,
// a way to Gorgonia over packages that may be imported, and what is left in the tables when the
// code has gone.
func TestRulesRefuse(t *testing.T) {
	good := graph(t)
	with := func(from, to string) map[string][]string {
		g := maps.Clone(good)
		g[from] = append(slices.Clone(g[from]), to)
		return g
	}
	for _, from := range []string{"comm", "optim", "internal/program"} {
		g := with(from, "internal/exec")
		require.Contains(t, checkEdges(g, edges), from+" may not import internal/exec")
		require.Contains(t, checkGorgonia(g, overGorgonia), "needs Gorgonia: "+from+" -> internal/exec -> gorgonia")
	}
	g := with("internal/kernel", "internal/ops")
	require.Contains(t, checkGorgonia(g, overGorgonia), "needs Gorgonia: internal/kernel -> internal/ops -> gorgonia")
	g = with("internal/launch", "internal/ops") // allowed or not: comm comes to need Gorgonia
	require.Contains(t, checkGorgonia(g, overGorgonia),
		"needs Gorgonia: comm -> comm/internal/tcp -> internal/launch -> internal/ops -> gorgonia")

	require.Contains(t, checkEdges(with("more", "comm"), edges), "more has no row")
	less := maps.Clone(good)
	delete(less, "internal/exec")
	require.Contains(t, checkEdges(less, edges), "there is no package internal/exec: take out its row")
	require.Contains(t, checkGorgonia(less, overGorgonia),
		"there is no package internal/exec over Gorgonia: take it out of the list")
	less = maps.Clone(good)
	less["optim"] = []string{"shard"}
	require.Contains(t, checkEdges(less, edges), "optim does not import internal/kernel/vec: take it out of the row")
	require.Contains(t, checkGorgonia(good, append(slices.Clone(overGorgonia), "shard")),
		"shard does not need Gorgonia: take it out of the list")
}

// impurities returns the places of f where it does more than decide.
func impurities(f *file) (list []string) {
	for _, i := range f.ast.Imports {
		name := strings.Trim(i.Path.Value, `"`)
		if slices.ContainsFunc(impure, func(p string) bool { return name == p || strings.HasPrefix(name, p+"/") }) {
			list = append(list, f.at(i)+": imports "+name)
		}
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n.(type) {
		case *ast.GoStmt:
			list = append(list, f.at(n)+": starts a goroutine")
		case *ast.ChanType:
			list = append(list, f.at(n)+": has a channel")
		}
		return true
	})
	return list
}

// TestPurePackagesOnlyDecide checks the packages of pure, and that the check sees something.
func TestPurePackagesOnlyDecide(t *testing.T) {
	for _, dir := range pure {
		for _, f := range sources(t, func(f *file) bool { return !f.test && f.dir == dir }) {
			for _, fault := range impurities(f) {
				t.Error(fault)
			}
		}
	}
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, "f.go", "package p\nimport \"io\"\nimport \"net/http\"\nfunc f(chan int) { go f(nil) }", 0)
	require.NoError(t, err)
	require.Equal(t, []string{"f.go:3: imports net/http", "f.go:4: has a channel", "f.go:4: starts a goroutine"},
		impurities(&file{path: "f.go", ast: tree, set: set}))
}
