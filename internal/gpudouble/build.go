//go:build linux && cgo

package gpudouble

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// sources are the doubles: cuda/*.c make libcuda, nccl/*.c make libnccl, and control.c is part of
// both.
//
//go:embed *.c *.h cuda nccl
var sources embed.FS

// Libraries are the files of the doubles.
type Libraries struct{ CUDA, NCCL string }

// builds are the libraries of this process, by the flags they were built with.
var builds struct {
	sync.Mutex
	dir   string
	alive *os.File // the end of a pipe that is open as long as this process lives
	made  map[string]Libraries
}

// Build compiles the doubles with cc, once per process and set of flags, such as a -D for an old
// version. The files are removed when the process ends, however it ends.
func Build(t testing.TB, flags ...string) Libraries {
	t.Helper()
	builds.Lock()
	defer builds.Unlock()
	key := strings.Join(flags, " ")
	if libs, ok := builds.made[key]; ok {
		return libs
	}
	if builds.dir == "" {
		dir, err := unpack()
		if err != nil {
			t.Fatalf("unpacking the doubles: %v", err)
		}
		builds.dir, builds.made = dir, make(map[string]Libraries)
	}
	out, err := os.MkdirTemp(builds.dir, "lib")
	if err != nil {
		t.Fatalf("building the doubles: %v", err)
	}
	libs := Libraries{CUDA: filepath.Join(out, "libcuda.so.1"), NCCL: filepath.Join(out, "libnccl.so.2")}
	nccl := make(chan error)
	go func() { nccl <- compile(libs.NCCL, "nccl", flags) }()
	err = compile(libs.CUDA, "cuda", flags)
	if err := errors.Join(err, <-nccl); err != nil {
		t.Fatalf("building the doubles needs cc, as cgo does: %v", err)
	}
	builds.made[key] = libs
	return libs
}

// unpack writes the sources to a directory that disappears with this process: another process,
// that waits for the end of this one's, removes it.
func unpack() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "gofsdp-double"); err != nil {
		return "", err
	}
	end, alive, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer end.Close()
	sweep := exec.Command("/bin/sh", "-c", `trap '' INT TERM HUP; read end; rm -rf "$1"`, "sh", dir)
	sweep.Stdin = end
	if err := sweep.Start(); err != nil {
		return "", err
	}
	builds.alive = alive
	return dir, os.CopyFS(dir, sources)
}

// compile makes a library of the sources in a folder and of control.c.
func compile(library, folder string, flags []string) error {
	files, _ := filepath.Glob(filepath.Join(builds.dir, folder, "*.c"))
	if len(files) == 0 {
		return fmt.Errorf("no sources in %s", folder)
	}
	args := []string{"-shared", "-fPIC", "-O1", "-g", "-w", "-fvisibility=hidden", "-pthread", "-o", library,
		"-Wl,-Bsymbolic", "-Wl,-soname," + filepath.Base(library)}
	args = append(args, flags...)
	args = append(args, strings.Fields(os.Getenv("FSDP_DOUBLE_CFLAGS"))...)
	args = append(args, files...)
	args = append(args, filepath.Join(builds.dir, "control.c"), "-ldl", "-lm", "-lrt")
	if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(library), err, out)
	}
	return nil
}
