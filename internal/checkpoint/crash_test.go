package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/checkpoint/crashfs"
)

var ctx = context.Background()

// errFull stands for what a full disk says.
var errFull = errors.New("no space left on device")

// disasters is how many outcomes of a power failure are looked at for each point of a save.
const disasters = 16

// requireWhole checks what a crash has left: the latest checkpoint is of one of the steps, where 0
// stands for none, and whole, and nothing that has the name of a checkpoint is torn.
func requireWhole(t require.TestingT, fsys checkpoint.FS, msg string, steps ...int) {
	got, err := load(fsys, dir)
	if errors.Is(err, checkpoint.ErrNone) {
		got, err = 0, nil
	}
	require.NoError(t, err, msg)
	require.Contains(t, steps, got, msg)
	entries, err := checkpoint.List(ctx, fsys, dir)
	if !errors.Is(err, fs.ErrNotExist) {
		require.NoError(t, err, msg)
	}
	for _, e := range entries {
		if e.Err != nil {
			require.ErrorIs(t, e.Err, checkpoint.ErrUnfinished, msg)
		}
	}
}

// twoSaves saves steps 1 and 2, of which the second replaces the first, and returns the last that
// has been committed.
func twoSaves(fsys checkpoint.FS) (committed int) {
	for step := 1; step <= 2; step++ {
		path, err := save(fsys, dir, step, 1)
		if path != "" {
			committed = step
		}
		if err != nil {
			break
		}
	}
	return committed
}

// TestCrashAnywhere has the process die before every operation of two saves, and the machine with
// it or not. What was committed is there, what comes next may be, and the next save works and
// leaves nothing but itself.
func TestCrashAnywhere(t *testing.T) { inDirs(t, testCrashAnywhere) }

// inDirs runs a test with all files of a checkpoint in one directory, and with each in its own.
func inDirs(t *testing.T, test func(t *testing.T)) {
	t.Run("one directory", test)
	t.Run("a directory each", func(t *testing.T) {
		checkpoint.SetFilesPerDir(t, 1)
		test(t)
	})
}

func testCrashAnywhere(t *testing.T) {
	whole := crashfs.New()
	require.Equal(t, 2, twoSaves(whole))
	ops := whole.Ops()
	for k := range len(ops) + 1 {
		f := crashfs.New()
		f.Kill(k)
		committed := twoSaves(f)
		look := func(g *crashfs.FS, how string) {
			msg := fmt.Sprintf("%d: after %v, %s", k, ops[max(0, k-1)], how)
			requireWhole(t, g, msg, committed, min(committed+1, 2))
			_, err := save(g, dir, 3, 1)
			require.NoError(t, err, msg)
			require.Len(t, bases(t, g, dir), 2, msg) // and the lock
			requireWhole(t, g.Crash(crashfs.Nothing), msg+" again", 3)
		}
		for seed := range uint64(disasters) {
			look(f.Crash(seed), fmt.Sprintf("power failure %d", seed))
		}
		look(f.Restart(), "killed")
	}
}

// TestCrashAgainAndAgain is a job that never gets far: it dies, goes on or loses power, and meets
// what all of that has left.
func TestCrashAgainAndAgain(t *testing.T) { inDirs(t, testCrashAgainAndAgain) }

func testCrashAgainAndAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := crashfs.New()
		committed := 0
		var maybe []int // begun since; one of them may have become whole, and stayed
		for step := 1; step <= 12; step++ {
			f.Kill(rapid.IntRange(0, 90).Draw(t, "operations"))
			path, err := save(f, dir, step, rapid.IntRange(1, 2).Draw(t, "keep"))
			switch {
			case path != "":
				committed, maybe = step, nil
			case err != nil:
				maybe = append(maybe, step)
			}
			if rapid.Bool().Draw(t, "power fails") {
				f = f.Crash(rapid.Uint64Range(0, 1<<20).Draw(t, "seed"))
			} else {
				f = f.Restart()
			}
			requireWhole(t, f, fmt.Sprint("step ", step), append(slices.Clone(maybe), committed)...)
		}
	})
}

// TestFaultAnywhere has every operation of a save fail in every way, once or for good. The error
// says whether the new checkpoint may be visible, names a path, and leaves the old one whole; when
// the fault is gone, so is every trace of it.
func TestFaultAnywhere(t *testing.T) { inDirs(t, testFaultAnywhere) }

func testFaultAnywhere(t *testing.T) {
	faults := map[string]crashfs.Fault{
		"full":             {Err: errFull},
		"halfway full":     {Err: errFull, Done: true},
		"denied":           {Err: fs.ErrPermission},
		"broken, but done": {Err: errors.New("input/output error"), Done: true},
		"full for good":    {Err: errFull, Forever: true, Only: func(o crashfs.Op) bool { return slices.Contains(growing, o.Name) }},
		"broken for good":  {Err: errors.New("input/output error"), Forever: true},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			dry := crashfs.New()
			mustSave(t, dry, 1, 1)
			before := len(dry.Ops())
			mustSave(t, dry, 2, 1)
			for k := range len(dry.Ops()) - before {
				f := crashfs.New()
				mustSave(t, f, 1, 1)
				fault.At = k
				f.Inject(fault)
				path, err := save(f, dir, 2, 1)
				f.Inject(crashfs.Fault{})
				requireFault(t, f, fault, path, err)
			}
		})
	}
}

var draftMarks = regexp.MustCompile(`\.tmp-[0-9a-f]{8}`)

// growing are the operations that need space.
var growing = []string{"mkdir", "create", "write", "sync", "close", "lock"}

func requireFault(t *testing.T, f *crashfs.FS, fault crashfs.Fault, path string, err error) {
	msg := fmt.Sprintf("%d: %v", fault.At, err)
	if err != nil {
		require.ErrorIs(t, err, fault.Err)
		require.Contains(t, err.Error(), "jobs", msg)
	}
	possible := []int{1}
	var failed *checkpoint.SaveError
	if errors.As(err, &failed) && failed.Visible {
		require.Contains(t, err.Error(), "may be complete", msg)
		possible = []int{1, 2}
	}
	if path != "" {
		possible = []int{2}
	}
	requireWhole(t, f, msg, possible...)
	for seed := range uint64(disasters / 4) {
		requireWhole(t, f.Crash(seed), msg, possible...)
	}
	mustSave(t, f, 3, 1)
	requireLatest(t, f, 3)
	require.Len(t, bases(t, f, dir), 2, msg)
}

// TestErrorsOfSaves reads what a person would.
func TestErrorsOfSaves(t *testing.T) {
	for op, want := range map[string]string{
		"mkdir":  "step 2 is not saved as jobs/ckpt/000002-step-2: mkdir jobs/ckpt/000002-step-2.tmp-*: no space left on device; earlier checkpoints are unchanged",
		"write":  "write jobs/ckpt/000002-step-2.tmp-*/rank-00000-of-00002.safetensors: no space left on device",
		"rename": "step 2 is not saved as jobs/ckpt/000002-step-2: rename jobs/ckpt/000002-step-2.tmp-*: no space left on device; earlier checkpoints are unchanged",
		"lock":   "checkpoint: lock jobs/ckpt/lock: no space left on device",
	} {
		f := crashfs.New()
		mustSave(t, f, 1, 1)
		f.Inject(crashfs.Fault{Err: errFull, Only: func(o crashfs.Op) bool {
			return o.Name == op && strings.HasPrefix(o.Path, dir+"/")
		}})
		_, err := save(f, dir, 2, 1)
		require.ErrorIs(t, err, errFull)
		text := draftMarks.ReplaceAllString(err.Error(), ".tmp-*")
		require.Contains(t, text, want)
		requireWhole(t, f, op, 1)
	}
}
