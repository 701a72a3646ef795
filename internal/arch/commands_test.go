package arch

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

// short is appended to the flags of gpt, which then ends within two seconds.
const short = " -max-bytes 100000 -layers 1 -dim 16 -heads 2 -context 16 -batch 8 -time 0 -steps 2 -eval-bytes 500 -sample-bytes 5"

// parsed has the reasons why the flags of other examples are only parsed, by -h after them.
var parsed = map[string]string{
	"answers":    "the tests of its package run it",
	"classify":   "the tests of its package run it",
	"digits":     "the tests of its package run it",
	"embed":      "the tests of its package run it",
	"extending":  "the tests of its package run it",
	"finetune":   "it needs the files of a model",
	"fromgraph":  "it has no flags, and the tests of its package run it",
	"gpt":        "it needs a GPU, and the tests of its package run it on doubles",
	"lora":       "it has no flags, and the tests of its package run it",
	"moe":        "it has no flags, and the tests of its package run it",
	"multimodal": "the tests of its package run it",
	"offload":    "the tests of its package run it",
	"t5":         "it takes a minute",
	"uneven":     "the tests of its package run it",
}

// command matches a command line in a comment of an example.
var command = regexp.MustCompile(`(?m)^\t(?:\$ )?((?:mpirun .*|go run \./fsdp/fsdprun .*)?(?:go run )?\./examples/(\w+)(.*))$`)

// TestCommands runs each command in the comments of the examples, or parses its flags. It leaves
// out launchers.
func TestCommands(t *testing.T) {
	t.Chdir(root)
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
					shell(t, "go build -o "+program+" ./examples/"+name)
				}
				if name == "gpt" && !strings.Contains(rest, "-gpu") {
					rest = strings.NewReplacer("-save ckpt", "-save "+filepath.Join(t.TempDir(), "ckpt"), "-log run", "-log "+t.TempDir(), "~/notes", "examples/gpt").Replace(rest)
					shell(t, program+rest+short)
					return
				}
				t.Log("flags parsed: " + parsed[name])
				shell(t, program+rest+" -h")
			})
		}
	}
	require.Greater(t, found, 20)
}

// shell runs a command line.
func shell(t *testing.T, line string) {
	out, err := exec.Command("sh", "-c", line).CombinedOutput()
	require.NoError(t, err, "%s\n%s", line, out)
}
