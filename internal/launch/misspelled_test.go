package launch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMisspelled(t *testing.T) {
	for name, meant := range map[string]string{
		"FSDP_TRANSPROT": "FSDP_TRANSPORT", "FSDP_CHECKSUM": "FSDP_CHECKSUMS", "FSDP_TIME_OUT": "FSDP_TIMEOUT", "FSDP_JOINTIMEOUT": "FSDP_JOIN_TIMEOUT",
		"FSDP_SECRETFILE": "FSDP_SECRET_FILE", "FSDP_TSL": "FSDP_TLS", "FSDP_TRUST_NETWROKS": "FSDP_TRUST_NETWORK", "FSDP_ALOW_OLDR": "FSDP_ALLOW_OLDER",
	} {
		require.Equal(t, []string{name + " is not used: did you mean " + meant + "?"}, Misspelled([]string{"RANK=1", name + "=x", "FSDP_TLS=1"}))
	}
	// Of other programs, such as Hugging Face's accelerate, and of our own tests.
	for _, name := range []string{"FSDP_VERSION", "FSDP_SHARDING_STRATEGY", "FSDP_STATE_DICT_TYPE", "FSDP_TP", "FSDP_TEST_JOB", "TRANSPROT", "FSDP_", "", "FSDP"} {
		require.Empty(t, Misspelled([]string{name + "=x", name}), name)
	}
	for _, v := range variables {
		require.Empty(t, Misspelled([]string{v + "=x"}))
	}
}

// TestVariables looks through the library for variables that Misspelled does not know, and compares those that it
// knows with the table in docs.
func TestVariables(t *testing.T) {
	root, like := filepath.Join("..", ".."), regexp.MustCompile(`^FSDP_[A-Z_]*[A-Z]$`)
	found := map[string]bool{}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "testdata", "workshop", "accept", "gpudouble", "nvrtc", "cluster"}, d.Name()):
			return fs.SkipDir // nothing in there is for users of the library
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || d.Name() == "misspelled.go":
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				if s, err := strconv.Unquote(l.Value); err == nil && like.MatchString(s) {
					found[s] = true
				}
			}
			return true
		})
		return nil
	}))
	require.Greater(t, len(found), 10)
	for name := range found {
		require.Contains(t, variables, name, "name it there, or see why it is none")
	}
	for _, name := range variables {
		require.Contains(t, found, name)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "variables.md"))
	require.NoError(t, err)
	var table []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(FSDP_[A-Z_]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		table = append(table, row[1])
	}
	require.ElementsMatch(t, variables, table, "docs/variables.md")
}
