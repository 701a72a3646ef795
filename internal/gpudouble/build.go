//go:build linux && cgo

package gpudouble

import (
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// sources are the doubles: cuda/*.c and ptx/*.c make libcuda, nccl/*.c make libnccl, cublaslt/*.c
// make libcublasLt, and control.c is part of each.
//
//go:embed *.c *.h cuda nccl ptx cublaslt
var sources embed.FS

// Libraries are the files of the doubles.
type Libraries struct{ CUDA, NCCL, CUBLASLT string }

// A library is built from the sources in some folders and from control.c.
type library struct {
	file    string
	folders []string
}

// builds are the libraries that this process has requested, by their flags.
var builds struct {
	sync.Mutex
	made map[string]Libraries
}

// Build compiles the doubles with cc, and libnccl with additional flags, such as a -D for an old
// version. The libraries are kept in the user's cache directory, by a hash of sources, flags,
// compiler and processor: most processes find them there.
func Build(t testing.TB, flags ...string) Libraries {
	t.Helper()
	builds.Lock()
	defer builds.Unlock()
	key := strings.Join(flags, " ")
	if libs, ok := builds.made[key]; ok {
		return libs
	}
	var libs Libraries
	for _, l := range []struct {
		library
		path  *string
		flags []string
	}{
		{library{"libcuda.so.1", []string{"cuda", "ptx"}}, &libs.CUDA, nil},
		{library{"libnccl.so.2", []string{"nccl"}}, &libs.NCCL, flags},
		{library{"libcublasLt.so.13", []string{"cublaslt"}}, &libs.CUBLASLT, nil},
	} {
		path, err := cached(l.library, slices.Concat(l.flags, strings.Fields(os.Getenv("FSDP_DOUBLE_CFLAGS"))), build)
		if err != nil {
			t.Fatalf("building the double %s, which needs cc, as cgo does: %v", l.file, err)
		}
		*l.path = path
	}
	if builds.made == nil {
		builds.made = make(map[string]Libraries)
	}
	builds.made[key] = libs
	return libs
}

// The cache is a directory with one directory for each hash. The builder holds the lock file, so
// test programs that start together build once. A build removes directories that have not been used
// for a while.
const (
	cacheName = "gofsdp-doubles"
	unused    = 5 * 24 * time.Hour
)

// cached returns the path of a library with these flags. If it is missing, build creates it in a
// directory.
func cached(l library, flags []string, build func(l library, dir string, flags []string) error) (string, error) {
	key, err := hash(l, flags)
	if err != nil {
		return "", err
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, key)
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	now := time.Now()
	if os.Chtimes(dir, now, now) == nil {
		return filepath.Join(dir, l.file), nil
	}
	if err := sweep(cache, now.Add(-unused)); err != nil {
		return "", err
	}
	return filepath.Join(dir, l.file), build(l, dir, flags)
}

// cacheDir returns the cache: the user's, or a temporary one if the user has no writable home
// directory.
func cacheDir() (string, error) {
	if user, err := os.UserCacheDir(); err == nil {
		dir := filepath.Join(user, cacheName)
		if os.MkdirAll(dir, 0o755) == nil {
			return dir, nil
		}
	}
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("%s-%d", cacheName, os.Getuid()))
	return dir, os.MkdirAll(dir, 0o700)
}

// hash names a library by everything that it depends on. The compiler's commands for an empty file
// include its version and the processor.
func hash(l library, flags []string) (string, error) {
	sum := sha256.New()
	machine, err := exec.Command("cc", "-###", "-march=native", "-S", "-o", "-", "-x", "c", os.DevNull).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("cc: %w\n%s", err, machine)
	}
	fmt.Fprintf(sum, "%s\x00%q\x00%q\x00%q", machine, l, flags, compilers)
	for _, pattern := range append([]string{"."}, l.folders...) {
		files, err := fs.Glob(sources, pattern+"/*.[ch]")
		if err != nil {
			return "", err
		}
		for _, file := range files {
			text, err := sources.ReadFile(file)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(sum, "%s\x00%d\x00%s", file, len(text), text)
		}
	}
	return fmt.Sprintf("%x", sum.Sum(nil)[:16]), nil
}

// sweep removes entries of the cache that were last used before a time.
func sweep(cache string, before time.Time) error {
	entries, err := os.ReadDir(cache)
	for _, entry := range entries {
		info, err := entry.Info()
		if err == nil && entry.IsDir() && info.ModTime().Before(before) {
			err = os.RemoveAll(filepath.Join(cache, entry.Name()))
		}
		if err != nil {
			return err
		}
	}
	return err
}

// compilers are the flags by folder. Tests spend most of their time in the PTX machine, so it is
// optimised. Its arithmetic follows the instructions: products and sums are not contracted.
var compilers = map[string][]string{
	"cuda":     {"-O1"},
	"nccl":     {"-O1"},
	"cublaslt": {"-O3", "-march=native"},
	"ptx": {"-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
		"-fno-strict-aliasing"},
}

// build creates a library in a directory, which appears when it is complete.
func build(l library, dir string, flags []string) error {
	work, err := os.MkdirTemp(filepath.Dir(dir), "building")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	source := filepath.Join(work, "source")
	if err := os.CopyFS(source, sources); err != nil {
		return err
	}
	objects, err := compile(l, source, flags)
	if err != nil {
		return err
	}
	arguments := []string{"-shared", "-o", filepath.Join(work, l.file), "-Wl,-Bsymbolic", "-Wl,-soname," + l.file}
	if err := cc(slices.Concat(arguments, flags, objects, []string{filepath.Join(source, "control.c"), "-ldl", "-lm", "-lrt"})); err != nil {
		return err
	}
	if err := os.RemoveAll(source); err != nil {
		return err
	}
	return os.Rename(work, dir)
}

// compile compiles the files of a library at once and returns the objects.
func compile(l library, source string, flags []string) (objects []string, err error) {
	made := make(chan error)
	for _, folder := range l.folders {
		files, err := fs.Glob(sources, folder+"/*.c")
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			from := filepath.Join(source, file)
			object := strings.TrimSuffix(from, ".c") + ".o"
			objects = append(objects, object)
			go func() { made <- cc(slices.Concat(compilers[folder], flags, []string{"-c", "-o", object, from})) }()
		}
	}
	for range objects {
		err = errors.Join(err, <-made)
	}
	return objects, err
}

// cc runs the compiler.
func cc(args []string) error {
	args = slices.Concat([]string{"-fPIC", "-g", "-w", "-fvisibility=hidden", "-pthread"}, args)
	if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("cc %s: %w\n%s", args[len(args)-1], err, out)
	}
	return nil
}
