//go:build linux && cgo

package device

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/gpudouble"
)

// loadScript is a process that loads the driver in every way, and prints how that ends. Its
// argument is the double.
func loadScript() {
	path := os.Args[1]
	variable := func(value string) { os.Setenv(EnvCUDA, value) }
	say := func(what string, err error) {
		var load *LoadError
		var result *Error
		fmt.Printf("%s: unavailable=%t", what, errors.Is(err, ErrUnavailable))
		if errors.As(err, &load) {
			fmt.Printf(" tried=%q", load.Tried)
		}
		if errors.As(err, &result) {
			fmt.Printf(" op=%s code=%d", result.Op, result.Code)
		}
		fmt.Printf(" %v\n", err)
	}
	variable("")
	say("name", Load(""))
	variable("/nowhere/variable.so")
	say("variable", Load(""))
	say("explicit", Load("/nowhere/explicit.so"))
	say("no driver", Load("libm.so.6"))
	_, err := Open(0)
	say("open", err)
	_, err = Count()
	say("count", err)
	_, err = Version()
	say("version", err)
	fmt.Println("symbol:", Symbol("cuCtxSetCurrent"))
	say("no device", Load(path)) // the first cuInit fails
	variable(path)
	n, err := Count()
	say(fmt.Sprint("found ", n), err)
	say("again", Load(""))
	say("same", Load(path))
	say("other", Load("/nowhere/explicit.so"))
	_, err = Open(2)
	say("device", err)
}

func TestLoad(t *testing.T) {
	path := gpudouble.Build(t).CUDA
	dir := t.TempDir() // no library, even if the machine has a driver
	broken := filepath.Join(dir, "libcuda.so.1")
	require.NoError(t, os.WriteFile(broken, nil, 0o600))
	lines := child(t, dir, path, "FSDP_DOUBLE_FAIL=cuInit:1:100", "FSDP_DOUBLE_DEVICES=2")

	failed := func(what, name, answer string) string {
		answer = name + ": " + answer
		return fmt.Sprintf("%s: unavailable=true tried=[%q] the CUDA driver is not available on this machine (%s): ", what, answer, answer) +
			"it comes with the NVIDIA driver, and " + EnvCUDA + " may name its file"
	}
	nowhere := func(what, name string) string {
		return failed(what, name, name+": cannot open shared object file: No such file or directory")
	}
	want := []string{
		failed("name", "libcuda.so.1", broken+": file too short"),
		nowhere("variable", "/nowhere/variable.so"),
		nowhere("explicit", "/nowhere/explicit.so"),
		`no driver: unavailable=true tried=["libm.so.6: it has no function cuInit"]`,
		nowhere("open", "/nowhere/variable.so"),
		nowhere("count", "/nowhere/variable.so"),
		nowhere("version", "/nowhere/variable.so"),
		"symbol: 0",
		"no device: unavailable=true op=cuInit code=100 the CUDA driver " + path + " is not available on this machine: " +
			"cuInit: CUDA_ERROR_NO_DEVICE, no CUDA-capable device is detected (CUresult 100)",
		"found 2: unavailable=false <nil>",
		"again: unavailable=false <nil>",
		"same: unavailable=false <nil>",
		"other: unavailable=false cannot load the CUDA driver from /nowhere/explicit.so: it is loaded from " + path + " already",
		"device: unavailable=true device 2 is not available on this machine: it has 2 devices",
	}
	require.Len(t, lines, len(want), lines)
	for i := range want {
		require.True(t, strings.HasPrefix(lines[i], want[i]), "got  %s\nwant %s", lines[i], want[i])
	}
}

// TestLoadBySoname lets the loader find the double where it looks for the driver.
func TestLoadBySoname(t *testing.T) {
	path := gpudouble.Build(t).CUDA
	lines := child(t, filepath.Dir(path), path)
	require.Equal(t, "name: unavailable=false <nil>", lines[0])
	require.Contains(t, lines, "other: unavailable=false cannot load the CUDA driver from /nowhere/explicit.so: "+
		"it is loaded from libcuda.so.1 already")
}

// child runs loadScript, with a directory where the loader looks first, and returns what it prints.
func child(t *testing.T, dir, path string, env ...string) []string {
	t.Helper()
	command := exec.Command(os.Args[0], path)
	command.Env = append(append(os.Environ(), script+"=load", "LD_LIBRARY_PATH="+dir), env...)
	out, err := command.CombinedOutput()
	require.NoError(t, err, string(out))
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}
