package arch

import (
	"go/ast"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// readme returns the text of README.md.
func readme(t *testing.T) string {
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	return string(text)
}

// block returns the lines of the fenced block of the README that begins so.
func block(t *testing.T, begin string) string {
	_, rest, found := strings.Cut(readme(t), "\n"+begin)
	require.True(t, found, "no block begins with %q", begin)
	body, _, closed := strings.Cut(rest, "\n```\n")
	require.True(t, closed)
	return strings.TrimPrefix(begin, "```go\n") + body + "\n"
}

// TestReadmeProgram builds and runs the program of the README with its go.mod, in a directory of
// its own, without a network.
func TestReadmeProgram(t *testing.T) {
	checkout, err := filepath.Abs(root)
	require.NoError(t, err)
	dir := t.TempDir()
	run := func(in, name string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = in
		cmd.Env = append(os.Environ(), "GOPROXY=off", "GOWORK=off")
		var problem strings.Builder
		cmd.Stderr = &problem
		out, err := cmd.Output()
		require.NoError(t, err, problem.String())
		return string(out)
	}
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	// What go mod tidy would add are the modules that the program's imports need.
	need := run(checkout, "go", "list", "-deps", "-f",
		"{{with .Module}}{{if not .Main}}require {{.Path}} {{.Version}}{{end}}{{end}}", "./fsdp/data", "./fsdp/monitor", "./fsdp/nn")
	needed := strings.Split(strings.TrimSpace(need), "\n")
	slices.Sort(needed)
	module := strings.Replace(block(t, "module counting\n"), "../gofsdp", filepath.ToSlash(checkout), 1)
	write("go.mod", module+strings.Join(slices.Compact(needed), "\n")+"\n")
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	require.NoError(t, err)
	write("go.sum", string(sum))
	text := block(t, "```go\npackage main\n")
	require.LessOrEqual(t, len(regexp.MustCompile(`(?m)^\s*[^/\s].*$`).FindAllString(text, -1)), 40, "lines of code")
	write("main.go", text)

	program := filepath.Join(dir, "counting.exe")
	run(dir, "go", "build", "-o", program, ".")
	require.Regexp(t, `^step +1/60  loss 2\.3(?s:.*)\nstep 60/60  loss 0\.1\d+ (?s:.*)  60 steps over 3 840 tok in `, run(dir, program))
}

// pages returns the README and all documents, by path, also those for developers.
func pages(t *testing.T) map[string]string {
	pages := make(map[string]string)
	for _, pattern := range []string{"*.md", "docs/*.md", "internal/*.md", "internal/experiments/*.md"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			pages[path] = string(text)
		}
	}
	require.Greater(t, len(pages), 5)
	return pages
}

// TestReadme checks that the README stays short, and that the two pages of names for users of
// PyTorch name things that are there.
func TestReadme(t *testing.T) {
	require.LessOrEqual(t, strings.Count(readme(t), "\n"), 150, "lines of README.md")
	declared, rows := declaredNames(t), 0
	for _, path := range []string{"README.md", "docs/pytorch.md"} {
		text, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)
		for _, row := range regexp.MustCompile(`(?m)^\| .* \| (.*) \|$`).FindAllStringSubmatch(string(text), -1) {
			rows++
			for _, code := range regexp.MustCompile("`[^`]*`").FindAllString(row[1], -1) {
				for _, name := range regexp.MustCompile(`\b[A-Z][a-z]\w*`).FindAllString(code, -1) {
					require.True(t, declared[name], "%s: %s in %s", path, name, row[1])
				}
			}
		}
	}
	require.Greater(t, rows, 70)
}

// TestPages checks that what the README and the documents name is there: files, targets of the two
// Makefiles, and names of packages.
func TestPages(t *testing.T) {
	var makefiles string
	for _, dir := range []string{"", workshop} {
		makefile, err := os.ReadFile(filepath.Join(root, dir, "Makefile"))
		require.NoError(t, err)
		makefiles += string(makefile)
	}
	declared := declaredNames(t)
	for path, text := range pages(t) {
		for _, link := range regexp.MustCompile(`\]\(([a-zA-Z.][^):#\s]+)[^)]*\)`).FindAllStringSubmatch(text, -1) {
			if !strings.HasPrefix(link[1], "https") {
				_, err := os.Stat(filepath.Join(filepath.Dir(path), link[1]))
				require.NoError(t, err, path)
			}
		}
		for _, run := range regexp.MustCompile(`go (?:run|install) \./(\S+)`).FindAllStringSubmatch(text, -1) {
			require.DirExists(t, filepath.Join(root, strings.TrimRight(run[1], "`,.;")), path)
		}
		for _, target := range regexp.MustCompile("(?m)(?:^|`)make ([a-z-]+)").FindAllStringSubmatch(text, -1) {
			require.Contains(t, makefiles, "\n"+target[1]+":", path)
		}
		for _, name := range regexp.MustCompile(`\b(?:comm|fsdp|data|graph|metrics|monitor|nn|op|optim|Sharded|Config|Precision|Group|Plan|Tape)\.([A-Z]\w*)`).FindAllStringSubmatch(text, -1) {
			require.True(t, declared[name[1]], "%s: %s", path, name[0])
		}
	}
}

// declaredNames returns the names that the public packages declare: functions, methods, types,
// values and fields.
func declaredNames(t *testing.T) map[string]bool {
	names := make(map[string]bool)
	public := []string{"comm", "fsdp", "fsdp/data", "fsdp/graph", "fsdp/metrics", "fsdp/monitor", "fsdp/nn", "fsdp/op", "optim"}
	for _, f := range sources(t, func(f *file) bool { return product(f) && slices.Contains(public, f.dir) }) {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				names[n.Name.Name] = true
			case *ast.TypeSpec:
				names[n.Name.Name] = true
			case *ast.ValueSpec:
				for _, name := range n.Names {
					names[name.Name] = true
				}
			case *ast.Field:
				for _, name := range n.Names {
					names[name.Name] = true
				}
			}
			return true
		})
	}
	return names
}
