package mapped

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestMain is also the main of the processes that tests start.
func TestMain(m *testing.M) {
	if job, ok := jobs[os.Getenv(jobVariable)]; ok {
		if err := job(os.Getenv(dirVariable)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const jobVariable, dirVariable = "MAPPED_TEST_JOB", "MAPPED_TEST_DIR"

// jobs are what a process of a test can do. They end without cleaning up.
var jobs = map[string]func(dir string) error{
	"files": func(dir string) error {
		f, err := Open(dir)
		return errors.Join(err, hold(f.Alloc))
	},
	"heap":          func(string) error { return hold(func(n int) ([]byte, error) { return make([]byte, n), nil }) },
	"limited files": limitedFiles,
}

// start runs a job in a process of its own and returns what it has written.
func start(t *testing.T, job, dir string) (output string, err error) {
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), jobVariable+"="+job, dirVariable+"="+dir, "GOMAXPROCS=2")
	out, err := child.CombinedOutput()
	return string(out), err
}

const (
	allowed = 64 << 20  // bytes of private memory that hold may add to the process
	held    = 512 << 20 // bytes that it uses at a time
)

// hold uses much more memory than the process is allowed to have of its own.
func hold(alloc func(n int) ([]byte, error)) error {
	debug.SetGCPercent(-1) // what fails first is then an allocation of the job, not one of the collector
	private, err := privateBytes()
	if err != nil {
		return err
	}
	limit := uint64(private + allowed)
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		return err
	}
	var blocks [][]byte
	for i := range held / allowed {
		b, err := alloc(allowed)
		if err != nil {
			return err
		}
		for at := 0; at < len(b); at += 4 << 10 {
			b[at] = byte(i + at>>12)
		}
		blocks = append(blocks, b)
	}
	for i, b := range blocks {
		for at := 0; at < len(b); at += 4 << 10 {
			if want := byte(i + at>>12); b[at] != want {
				return fmt.Errorf("byte %d of block %d is %d, want %d", at, i, b[at], want)
			}
		}
	}
	_, err = fmt.Println("held", held)
	return err
}

// privateBytes returns what counts against RLIMIT_DATA.
func privateBytes() (n int, err error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	_, line, _ := strings.Cut(string(text), "VmData:")
	_, err = fmt.Sscan(line, &n)
	return n << 10, err
}

// TestMoreThanTheAllowance shows what the package is for: a process holds eight times what it is
// allowed to have of its own.
func TestMoreThanTheAllowance(t *testing.T) {
	dir := t.TempDir()
	out, err := start(t, "files", dir)
	require.NoError(t, err, out)
	require.Equal(t, fmt.Sprintln("held", held), out)
	out, err = start(t, "heap", dir)
	require.Error(t, err, "without files the allowance holds")
	require.NotContains(t, out, "held")
	require.Regexp(t, "out of memory|pthread_create failed|failed to allocate", out, "an array, the stack of a thread, or the race detector's words")

	left, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	require.NoError(t, err)
	require.Empty(t, left, "the process has not cleaned up, and yet there is nothing to clean up")
}

// limitedFiles runs into a limit on the size of files, which the kernel reports where it reports a
// full disk: when the place is taken, not before.
func limitedFiles(dir string) error {
	signal.Ignore(unix.SIGXFSZ)
	const limit = 4 << 20
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		return err
	}
	f, err := Open(dir)
	if err != nil {
		return err
	}
	b, err := f.Alloc(limit)
	if err != nil {
		return err
	}
	b[limit-1] = 1
	before := openFiles()
	var space *SpaceError
	if _, err := f.Alloc(limit + 1); !errors.As(err, &space) || !errors.Is(err, unix.EFBIG) || space.Free <= limit {
		return fmt.Errorf("a file above the limit: %v", err)
	}
	if len(f.maps) != 1 || openFiles() != before {
		return errors.New("the file that failed is still there")
	}
	file, err := nameless(f.dir)
	if err != nil {
		return err
	}
	if err := fill(file, limit+1); !errors.Is(err, unix.EFBIG) {
		return fmt.Errorf("zeros above the limit: %v", err)
	}
	return errors.Join(file.Close(), f.Close())
}

func TestNoPlaceForAFile(t *testing.T) {
	out, err := start(t, "limited files", t.TempDir())
	require.NoError(t, err, out)
}

// openFiles returns the number of file descriptors in use, one for the look itself.
func openFiles() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1
	}
	return len(entries)
}

// TestNothingIsLeft counts descriptors and mappings.
func TestNothingIsLeft(t *testing.T) {
	mappings := func() int {
		maps, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		return strings.Count(string(maps), "/gofsdp-")
	}
	f := open(t)
	alloc(t, f, 1<<20)
	before := openFiles()
	var blocks [][]byte
	for i := range 20 {
		blocks = append(blocks, alloc(t, f, i*30_000+1))
	}
	require.Equal(t, before, openFiles(), "a mapping keeps its file without a descriptor")
	require.Greater(t, mappings(), 1)
	for _, b := range blocks {
		require.NoError(t, f.Free(b))
	}
	require.Equal(t, 1, mappings())
	require.NoError(t, f.Close())
	require.Zero(t, mappings())
}

// resident returns how many pages of b, which begins with one, are in RAM.
func resident(t *testing.T, b []byte) (n int) {
	in := make([]byte, roundUp(len(b), os.Getpagesize())/os.Getpagesize())
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&in[0])))
	require.Zero(t, errno)
	for _, x := range in {
		n += int(x & 1)
	}
	return n
}

// drop writes pages to the disk and takes them out of RAM, as the kernel does when memory is short.
func drop(t *testing.T, pages []byte) {
	require.NoError(t, unix.Msync(pages, unix.MS_SYNC))
	require.NoError(t, unix.Madvise(pages, unix.MADV_PAGEOUT))
}

// TestWillNeed looks at the pages: out of RAM, back after WillNeed, and the contents the same.
func TestWillNeed(t *testing.T) {
	f, err := Open("/var/tmp") // where /tmp is RAM, this is not
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	page := os.Getpagesize()
	b := alloc(t, f, 512*page-100)
	fillWith(b, 7)
	require.Greater(t, resident(t, b), 256)

	whole, err := f.pages(b)
	require.NoError(t, err)
	require.Eventually(t, func() bool { // the kernel need not do it at once, nor with all pages
		drop(t, whole)
		return resident(t, b) < 128
	}, time.Minute, time.Millisecond)
	require.NoError(t, f.WillNeed(b))
	require.Eventually(t, func() bool { return resident(t, b) >= 256 }, time.Minute, time.Millisecond, "read-ahead")
	verify(t, b, 7)

	shared := alloc(t, f, 2*page)
	fillWith(shared, 8)
	pages, err := f.pages(shared)
	require.NoError(t, err)
	require.Empty(t, pages, "small blocks have neighbours")
}

// TestFill holds the way to reserve a file where the system has none against the other.
func TestFill(t *testing.T) {
	for _, n := range []int{1, 4096, 1<<20 - 1, 1 << 20, 3<<20 + 5} {
		for name, reserve := range map[string]func(*os.File, int) error{"fill": fill, "reserve": reserve} {
			file, err := nameless(t.TempDir())
			require.NoError(t, err)
			require.NoError(t, reserve(file, n))
			var st unix.Stat_t
			require.NoError(t, unix.Fstat(int(file.Fd()), &st))
			require.EqualValues(t, n, st.Size, name)
			require.GreaterOrEqual(t, st.Blocks*512, int64(n), "%s: all of it has a place", name)
			require.NoError(t, file.Close())
		}
	}
}
