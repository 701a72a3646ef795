//go:build linux && cgo

package blaslt

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/device"
	"github.com/gofsdp/gofsdp/internal/gpudouble"
)

// loadScript is a process that loads the library in every way, and prints how that ends. Its
// arguments are the doubles of libcuda and of libcublasLt.
func loadScript() {
	cuda, lt := os.Args[1], os.Args[2]
	say := func(what string, err error) {
		var load *device.LoadError
		tried := errors.As(err, &load)
		fmt.Printf("%s: unavailable=%t load=%t %v\n", what, errors.Is(err, device.ErrUnavailable), tried, err)
	}
	os.Setenv(EnvLibrary, "")
	say("name", Load(""))
	os.Setenv(EnvLibrary, "/nowhere/variable.so")
	say("variable", Load(""))
	_, err := Version()
	say("version", err)
	_, err = New(nil)
	say("new", err)
	say("explicit", Load("/nowhere/explicit.so"))
	say("another library", Load("libm.so.6"))
	os.Setenv(EnvLibrary, lt)
	n, err := Version()
	say(fmt.Sprint("found ", n), err)
	say("same", Load(lt))
	say("other", Load("/nowhere/explicit.so"))
	os.Setenv(device.EnvCUDA, "/nowhere/libcuda.so")
	_, err = New(nil)
	say("no driver", err)
	os.Setenv(device.EnvCUDA, cuda)
	dev, err := device.Open(0)
	say("device", err)
	h, err := New(dev)
	say("handle", err)
	say("close", h.Close())
}

func TestLoad(t *testing.T) {
	libs := gpudouble.Build(t)
	command := exec.Command(os.Args[0], libs.CUDA, libs.CUBLASLT)
	empty := t.TempDir() // no library, even if the machine has one
	for _, major := range []string{"13", "12", "11"} {
		require.NoError(t, os.WriteFile(filepath.Join(empty, "libcublasLt.so."+major), nil, 0o600))
	}
	command.Env = append(os.Environ(), script+"=load", "LD_LIBRARY_PATH="+empty)
	out, err := command.CombinedOutput()
	require.NoError(t, err, string(out))
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")

	failed := func(what string, tried ...string) string {
		return fmt.Sprintf("%s: unavailable=true load=true cuBLASLt is not available on this machine (%s): it comes with CUDA's toolkit and "+
			"Python's nvidia-cublas, and %s may name its file", what, strings.Join(tried, ", "), EnvLibrary)
	}
	const gone = ": cannot open shared object file: No such file or directory"
	variable, explicit := "/nowhere/variable.so: /nowhere/variable.so"+gone, "/nowhere/explicit.so: /nowhere/explicit.so"+gone
	var names []string
	for _, major := range []string{"13", "12", "11"} {
		name := "libcublasLt.so." + major
		names = append(names, name+": "+filepath.Join(empty, name)+": file too short")
	}
	require.Equal(t, []string{
		failed("name", names...),
		failed("variable", variable),
		failed("version", variable),
		failed("new", variable),
		failed("explicit", explicit),
		failed("another library", "libm.so.6: it has no function cublasLtCreate"),
		"found 130400: unavailable=false load=false <nil>",
		"same: unavailable=false load=false <nil>",
		"other: unavailable=false load=false cannot load cuBLASLt from /nowhere/explicit.so: it is loaded from " + libs.CUBLASLT + " already",
		"no driver: unavailable=true load=false cuBLASLt: cuCtxSetCurrent of the CUDA driver is not available on this machine",
		"device: unavailable=false load=false <nil>",
		"handle: unavailable=false load=false <nil>",
		"close: unavailable=false load=false <nil>",
	}, lines)
}
