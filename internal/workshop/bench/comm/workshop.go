package comm

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

//go:embed peers
var peers embed.FS

// workshop is the place where peers are built and run: two directories that close removes with
// their contents.
type workshop struct {
	self          string            // this program
	dir           string            // sources, programs, sockets
	shared        string            // for shared memory: below /dev/shm if that exists
	programs      map[string]string // paths by name: peers, and the launchers ompirun and mpichrun
	max           int               // bytes of the largest tensor
	plainLoopback bool              // the loopback is not prepared for TCP
}

func openWorkshop(max int) (*workshop, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &workshop{self: self, programs: map[string]string{}, max: max}
	if s.dir, err = os.MkdirTemp("", "comm-bench-"); err != nil {
		return nil, err
	}
	if s.shared, err = os.MkdirTemp("/dev/shm", "comm-bench-"); err != nil {
		if s.shared, err = os.MkdirTemp(s.dir, "shared-"); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	if err := os.CopyFS(s.dir, peers); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *workshop) close() error {
	var err error
	if s.shared != "" {
		err = os.RemoveAll(s.shared)
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// recipe describes how to build a peer program.
type recipe struct {
	name      string
	source    string
	compilers []string // the first installed one is used
	flags     []string
	launcher  string // name of its launcher in workshop.programs, or ""
	launchers []string
	install   string // the Debian packages for it
}

var warnings = []string{"-O3", "-march=native", "-Wall", "-Wextra"}

var recipes = []recipe{
	{name: "ompi", source: "mpi.c", compilers: []string{"mpicc.openmpi", "mpicc"}, flags: []string{"-DWANT_OPEN_MPI"},
		launcher: "ompirun", launchers: []string{"mpirun.openmpi", "mpirun"}, install: "openmpi-bin libopenmpi-dev"},
	{name: "mpich", source: "mpi.c", compilers: []string{"mpicc.mpich"},
		launcher: "mpichrun", launchers: []string{"mpiexec.mpich"}, install: "mpich libmpich-dev"},
	{name: "gloo", source: "gloo.cc", compilers: []string{"c++"}, flags: []string{"-std=c++17", "-lgloo"}, install: "g++ libgloo-dev"},
	{name: "memcpy", source: "memcpy.c", compilers: []string{"cc"}, install: "gcc"},
}

// prepare builds the peers for opts and returns the candidates that can run. It lists missing
// programs on w.
func (s *workshop) prepare(ctx context.Context, w io.Writer, opts options) []candidate {
	var able []candidate
	failed := map[string]bool{}
	for _, c := range wanted(opts.candidates) {
		if c.program != "" && s.programs[c.program] == "" && !failed[c.program] {
			if err := s.build(ctx, c.program); err != nil {
				fmt.Fprintln(w, err)
				failed[c.program] = true
			}
		}
		if !failed[c.program] {
			able = append(able, c)
		}
	}
	return able
}

// build makes a peer program.
func (s *workshop) build(ctx context.Context, name string) error {
	for _, r := range recipes {
		if r.name != name {
			continue
		}
		if err := s.make(ctx, r); err != nil {
			return fmt.Errorf("without %s: %w\n  to have it measured: apt-get install %s", name, err, r.install)
		}
	}
	return nil
}

func (s *workshop) make(ctx context.Context, r recipe) error {
	compiler, err := firstOf(r.compilers)
	if err != nil {
		return err
	}
	if r.launcher != "" {
		if s.programs[r.launcher], err = firstOf(r.launchers); err != nil {
			return err
		}
	}
	program := filepath.Join(s.dir, r.name)
	args := append([]string{filepath.Join(s.dir, "peers", r.source), "-o", program}, warnings...)
	cmd := exec.CommandContext(ctx, compiler, append(args, r.flags...)...)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", compiler, r.source, err, firstLines(text, 3))
	}
	s.programs[r.name] = program
	return nil
}

// firstOf finds the first program that is installed.
func firstOf(names []string) (path string, err error) {
	for _, name := range names {
		if path, err = exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", err
}

// firstLines returns the first n lines of text.
func firstLines(text []byte, n int) []byte {
	for i, b := range text {
		if b == '\n' {
			if n--; n == 0 {
				return text[:i]
			}
		}
	}
	return text
}
