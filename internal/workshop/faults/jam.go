package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// jam is a case in which something is in the way of whoever opens a file of a checkpoint, the last
// one of a job.
type jam struct {
	obstacle string
	call     string
	ranks    int // that have saved
	saves    int
	file     string // base name, "" for the directory of the job
}

// The obstacles of a jam. The system knows all but the last one for no file. That one is a file
// system whose server is gone: opening and listing block.
const (
	fifo      = "FIFO"
	directory = "directory"
	device    = "device"
	silence   = "silence"
)

var (
	obstacles = []string{fifo, directory, device, silence}
	jamCalls  = []string{"latest", "list", "open", "hold", "read", "verify"} // all that a load does, and fsdpckpt
)

// jamLimit is for a call: one that would wait for ever ends with its context, as soon as it waits.
const jamLimit = 2 * time.Second

var errWaited = errors.New("waited long enough")

// jamOf returns a case by its number.
func jamOf(seed uint64, number int) jam {
	rng := rand.New(rand.NewPCG(seed, uint64(number)))
	j := jam{
		obstacle: obstacles[number%len(obstacles)], call: jamCalls[number/len(obstacles)%len(jamCalls)],
		ranks: 1 + rng.IntN(8), saves: 1 + rng.IntN(3),
	}
	j.file = checkpoint.FileName("rank", rng.IntN(j.ranks), j.ranks)
	switch {
	case j.opened(): // the manifest has been read
	case rng.IntN(3) == 0:
		j.file = checkpoint.ManifestName
	case j.call != "open" && j.obstacle == silence && rng.IntN(3) == 0:
		j.file = ""
	}
	return j
}

// opened reports whether the obstacle comes after the checkpoint has been opened.
func (j jam) opened() bool { return j.call == "hold" || j.call == "read" || j.call == "verify" }

func (j jam) String() string {
	return fmt.Sprintf("%s in the way of %s: %q of the last of %d checkpoints of %d ranks", j.obstacle, j.call, j.file, j.saves, j.ranks)
}

// jamKey is the tensor that checkpoints hold, of jamLen elements of each rank.
var jamKey = checkpoint.Key{Param: "w", Owner: checkpoint.Shared}

const jamLen = 64

// save makes the checkpoints of the case in dir and returns the path of the last one.
func (j jam) save(ctx context.Context, dir string) (path string, err error) {
	store, err := checkpoint.Open(checkpoint.OS(), dir)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if err := store.Lock(ctx); err != nil {
		return "", err
	}
	for step := range j.saves {
		draft, err := store.Begin(step)
		if err != nil {
			return "", err
		}
		shards := make([]*checkpoint.Shard, j.ranks)
		for r := range shards {
			part := checkpoint.Part{
				Key: jamKey, DType: safetensors.F32, Shape: []int{j.ranks * jamLen}, Offset: r * jamLen,
				Data: bytes.Repeat([]byte{0, 0, byte(step), 64}, jamLen),
			}
			name := checkpoint.FileName("rank", r, j.ranks)
			if shards[r], err = checkpoint.WriteShard(ctx, checkpoint.OS(), draft.Dir(), name, []checkpoint.Part{part}, nil); err != nil {
				return "", err
			}
		}
		m := checkpoint.Manifest{Step: step, World: j.ranks}
		if m.Files, m.Tensors, err = checkpoint.Merge(shards); err != nil {
			return "", err
		}
		if path, err = store.Commit(draft, &m); err != nil {
			return "", err
		}
	}
	return path, nil
}

// jammed is a file system that does not answer when a path is opened or listed, until it is back.
type jammed struct {
	checkpoint.FS
	path string
	met  func() // called first
	back chan struct{}
}

func (s *jammed) wait(path string) {
	if path == s.path {
		s.met()
		<-s.back
	}
}

func (s *jammed) Open(path string) (checkpoint.Handle, error) {
	s.wait(path)
	return s.FS.Open(path)
}

func (s *jammed) ReadDir(dir string) ([]fs.DirEntry, error) {
	s.wait(dir)
	return s.FS.ReadDir(dir)
}

// block puts the obstacle where path is.
func (j jam) block(s *jammed, path string) error {
	if j.obstacle == silence {
		s.path = path
		return nil
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	switch j.obstacle {
	case fifo:
		out, err := exec.Command("mkfifo", path).CombinedOutput()
		if err != nil {
			return fmt.Errorf("mkfifo: %w: %s", err, out)
		}
		return nil
	case directory:
		return os.Mkdir(path, 0o755)
	default:
		return os.Symlink(os.DevNull, path)
	}
}

// run runs j and returns what was wrong, "" if nothing, and what the caller was told.
func (j jam) run(ctx context.Context) (wrong, told string) {
	dir, err := os.MkdirTemp("", "gofsdp-jam-")
	if err != nil {
		return err.Error(), ""
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil && wrong == "" {
			wrong = err.Error()
		}
	}()
	path, err := j.save(ctx, dir)
	if err != nil {
		return fmt.Sprintf("saving: %v", err), ""
	}
	s := &jammed{FS: checkpoint.OS(), back: make(chan struct{})}
	defer close(s.back)
	var r *checkpoint.Reader
	if j.opened() {
		if r, err = checkpoint.OpenReader(ctx, s, path); err != nil {
			return fmt.Sprintf("opening: %v", err), ""
		}
		defer r.Close()
	}
	victim := dir
	if j.file != "" {
		victim = filepath.Join(path, j.file)
	}
	if err := j.block(s, victim); err != nil {
		return fmt.Sprintf("not run: %v", err), ""
	}
	given, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.met = func() { cancel(errWaited) }
	done, began := make(chan error, 1), time.Now()
	go func() { done <- j.do(given, s, r, dir, path) }()
	select {
	case err = <-done:
	case <-time.After(jamLimit + spare):
		return fmt.Sprintf("no answer within %v", time.Since(began).Round(time.Millisecond)), ""
	}
	return j.flaw(err, dir, victim), fmt.Sprint(err)
}

// do makes the call, and returns why the last checkpoint does not count.
func (j jam) do(ctx context.Context, s *jammed, r *checkpoint.Reader, dir, path string) error {
	switch j.call {
	case "latest":
		found, err := checkpoint.Find(ctx, s, dir)
		if err != nil || len(found.Passed) == 0 {
			return err
		}
		return found.Passed[0].Err
	case "list":
		list, err := checkpoint.List(ctx, s, dir)
		if err != nil || len(list) == 0 {
			return err
		}
		return list[len(list)-1].Err
	case "open":
		r, err := checkpoint.OpenReader(ctx, s, path)
		if err == nil {
			return r.Close()
		}
		return err
	case "hold":
		return r.Hold(ctx, jamKey, 0, j.ranks*jamLen)
	case "read":
		return r.Read(ctx, jamKey, 0, make([]byte, 4*j.ranks*jamLen), safetensors.F32)
	default:
		return r.Verify(ctx, nil)
	}
}

// flaw says what is wrong with what the caller was told, "" if nothing.
func (j jam) flaw(err error, dir, victim string) string {
	why, where, text := errWaited, dir, ""
	if j.obstacle != silence {
		why, where, text = checkpoint.ErrDamaged, victim, "it is a "+j.obstacle+", not a file"
	}
	switch {
	case err == nil:
		return "the obstacle was not noticed"
	case !errors.Is(err, why):
		return fmt.Sprintf("should wrap %q: %v", why, err)
	case !strings.Contains(err.Error(), where) || !strings.Contains(err.Error(), text):
		return fmt.Sprintf("should say of %s %q: %v", where, text, err)
	}
	return ""
}

// jams runs cases of the given seed and returns how many failed.
func jams(ctx context.Context, out io.Writer, seed uint64, first, last int, verbose bool) (failed int) {
	return series(ctx, out, "jam", seed, first, last, verbose, func(i int) outcome {
		j := jamOf(seed, i)
		wrong, told := j.run(ctx)
		return outcome{j.obstacle, j.String(), wrong, told}
	})
}
