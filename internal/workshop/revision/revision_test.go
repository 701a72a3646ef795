package revision

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckout(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	write := func(text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n\nimport \"os\"\n\nfunc main() { os.Stdout.WriteString(`"+text+"`) }\n"), 0o600))
	}
	git := func(args ...string) {
		_, err := run(ctx, dir, "git", append([]string{"-c", "user.name=n", "-c", "user.email=e"}, args...)...)
		require.NoError(t, err)
	}
	git("init", "--quiet")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module m\n"), 0o600))
	write("old")
	git("add", ".")
	git("commit", "--quiet", "-m", "old")
	write("new")

	t.Chdir(dir)
	work, err := Working(ctx)
	require.NoError(t, err)
	base, remove, err := work.Checkout(ctx, "HEAD")
	require.NoError(t, err)
	require.Equal(t, base.Name+"+", work.Name)
	for _, c := range []struct {
		tree Tree
		says string
	}{{base, "old"}, {work, "new"}} {
		out := filepath.Join(t.TempDir(), "bin")
		require.NoError(t, c.tree.Build(ctx, out, "."))
		said, err := run(ctx, out, filepath.Join(out, "m"))
		require.NoError(t, err)
		require.Equal(t, c.says, said)
	}
	require.NoError(t, remove())
	require.NoDirExists(t, base.Dir)
	list, err := run(ctx, dir, "git", "worktree", "list", "--porcelain")
	require.NoError(t, err)
	require.NotContains(t, list, base.Dir)

	_, _, err = work.Checkout(ctx, "--help")
	require.ErrorContains(t, err, "--help")
	require.ErrorContains(t, work.Build(ctx, t.TempDir(), "./none"), "none")
}

func TestGraft(t *testing.T) {
	from, to := Tree{Dir: t.TempDir()}, Tree{Dir: t.TempDir()}
	require.ErrorIs(t, from.Graft(to, "a/b", ""), os.ErrNotExist)
	require.NoError(t, os.MkdirAll(filepath.Join(from.Dir, "a/b"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(from.Dir, "a/b/c.go"), []byte("c.Keep Keeper Spill"), 0o600))
	require.NoError(t, from.Graft(to, "a/b", "Keep=Hold,Spill=Write"))
	src, err := os.ReadFile(filepath.Join(to.Dir, "a/b/c.go"))
	require.NoError(t, err)
	require.Equal(t, "c.Hold Keeper Write", string(src))
	require.ErrorContains(t, from.Graft(to, "a/b", "Keep"), "new=old")
}
