// Package examples_test runs the commands that stand in the comments of the examples.
package examples_test

import (
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// short are flags that end gpt within a second or two. They follow those of the command.
const short = " -max-bytes 100000 -layers 1 -dim 16 -heads 2 -context 16 -batch 8 -time 0 -steps 2 -eval-bytes 500 -sample-bytes 5"

// parsed says why the other commands only have their flags parsed, by -h behind them.
var parsed = map[string]string{
	"digits":     "the tests of its package run it",
	"finetune":   "it needs the files of a model",
	"fromgraph":  "it has no flags, and the tests of its package run it",
	"lora":       "it has no flags, and the tests of its package run it",
	"moe":        "it has no flags, and the tests of its package run it",
	"multimodal": "the tests of its package run it",
	"offload":    "the tests of its package run it",
	"t5":         "it takes a minute",
	"uneven":     "the tests of its package run it",
}

var command = regexp.MustCompile(`(?m)^\t(?:\$ )?((?:mpirun .*|go run \./fsdp/fsdprun .*)?(?:go run )?\./examples/(\w+)(.*))$`)

// TestCommands runs each command, or parses its flags. Those of launchers are run without them.
func TestCommands(t *testing.T) {
	t.Chdir("..")
	files, err := filepath.Glob("examples/*/*.go")
	require.NoError(t, err)
	bin, found := t.TempDir(), 0
	for _, file := range files {
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.PackageClauseOnly|parser.ParseComments)
		require.NoError(t, err)
		for _, m := range command.FindAllStringSubmatch(strings.ReplaceAll(tree.Doc.Text(), "\\\n", " "), -1) {
			found++
			line, name := m[1], m[2]
			rest, _, _ := strings.Cut(strings.Replace(m[3], " *.txt", "", 1), " #") // -h comes before files
			program := filepath.Join(bin, name)
			t.Run(line, func(t *testing.T) {
				if name != "gpt" && !strings.Contains(rest, " -") {
					t.Log("not run, and no flags to parse: " + parsed[name])
					return
				}
				if _, err := os.Stat(program); err != nil {
					run(t, "go build -o "+program+" ./examples/"+name)
				}
				if name == "gpt" {
					rest = strings.NewReplacer("-save ckpt", "-save "+filepath.Join(t.TempDir(), "ckpt"), "~/notes", "examples/gpt").Replace(rest)
					run(t, program+rest+short)
					return
				}
				t.Log("flags parsed: " + parsed[name])
				run(t, program+rest+" -h")
			})
		}
	}
	require.Greater(t, found, 20)
}

// run runs a command line of a shell.
func run(t *testing.T, line string) {
	out, err := exec.Command("sh", "-c", line).CombinedOutput()
	require.NoError(t, err, "%s\n%s", line, out)
}
