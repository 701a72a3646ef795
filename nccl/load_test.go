//go:build linux && cgo

package nccl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/gpudouble"
)

// The scripts of this file load libraries, which a process does once.
func init() {
	scripts["absent"] = absent
	scripts["no cuda"] = noCUDA
	scripts["path"] = path
	scripts["old"] = old
	scripts["deterministic"] = deterministic
	scripts["too late"] = tooLate
}

// wanted is the variable that tells a script what to find.
const wanted = "FSDP_NCCL_TEST_WANTED"

func that(err error, what string, ok bool) {
	if !ok {
		panic(fmt.Errorf("not %s: %w", what, err))
	}
}

// absent expects everything to be unavailable, and a message with what is wanted.
func absent() error {
	return caught(func() error {
		for range 2 { // it is looked for again
			_, err := Version()
			_, id := NewUniqueID()
			_, c := NewCommunicator(context.Background(), nil, 1, UniqueID{}, 0, Config{})
			for _, err := range []error{err, id, c, Load("")} {
				var tried *LoadError
				that(err, "unavailable", errors.Is(err, ErrUnavailable) && errors.As(err, &tried))
				require.ErrorContains(new(rank), err, os.Getenv(wanted))
				require.ErrorContains(new(rank), err, EnvLibrary)
			}
		}
		return nil
	})
}

func TestAbsent(t *testing.T) {
	old := gpudouble.Build(t, "-DNCCL_DOUBLE_VERSION=21703")
	text := filepath.Join(t.TempDir(), "libnccl.so.2")
	require.NoError(t, os.WriteFile(text, []byte("not a library"), 0o600))
	for file, want := range map[string]string{
		"/nowhere/libnccl.so.2": "/nowhere/libnccl.so.2: cannot open shared object file",
		"":                      "libnccl.so.2: ",
		text:                    "file too short",
		old.NCCL:                "NCCL 2.17 is older than 2.18",
		gpudouble.Build(t).CUDA: "it has no function ncclGetVersion",
	} {
		t.Run(want, func(t *testing.T) { runChild(t, "absent", EnvLibrary+"="+file, wanted+"="+want) })
	}
}

// noCUDA expects NCCL to be there and CUDA not.
func noCUDA() error {
	return caught(func() error {
		must(Version())
		must(NewUniqueID())
		_, err := OpenDevice(0)
		that(err, "unavailable", errors.Is(err, ErrUnavailable))
		_, err = Devices()
		that(err, "unavailable", errors.Is(err, ErrUnavailable))
		return nil
	})
}

func TestNoCUDA(t *testing.T) { runChild(t, "no cuda", EnvCUDA+"=/nowhere/libcuda.so.1") }

// path expects that a path given wins, and that only one library is loaded.
func path() error {
	return caught(func() error {
		good := os.Getenv(wanted)
		check(Load(good))
		check(Load(good))
		check(Load(""))
		must(Version())
		err := Load("/elsewhere/libnccl.so.2")
		require.EqualError(new(rank), err, "cannot load NCCL from /elsewhere/libnccl.so.2: it is loaded from "+good+" already")
		return nil
	})
}

func TestPath(t *testing.T) {
	runChild(t, "path", EnvLibrary+"=/nowhere/libnccl.so.2", wanted+"="+gpudouble.Build(t).NCCL)
}

// old expects an NCCL 2.18.5, which has all that is needed.
func old() error {
	return caught(func() error {
		v := must(Version())
		that(nil, "2.18.5", v.String() == "2.18.5")
		dev := must(OpenDevice(0))
		c := must(NewCommunicator(context.Background(), dev, 1, must(NewUniqueID()), 0, Config{}))
		split := must(c.Split(context.Background(), 0, 0, Config{}))
		check(split.Finalize(context.Background()))
		check(split.Destroy())
		check(c.Finalize(context.Background()))
		check(c.Destroy())
		return dev.Close()
	})
}

func TestOldLibrary(t *testing.T) {
	runChild(t, "old", EnvLibrary+"="+gpudouble.Build(t, "-DNCCL_DOUBLE_VERSION=21805").NCCL)
}

// sums makes a communicator, and returns whether it may sum in switches of NVLink.
func sums() (inSwitches bool) {
	dev := must(OpenDevice(0))
	c := must(NewCommunicator(context.Background(), dev, 1, must(NewUniqueID()), 0, Config{}))
	check(errors.Join(c.Finalize(context.Background()), c.Destroy(), dev.Close()))
	return gpudouble.Open(&testing.T{}, os.Getenv(EnvLibrary)).Live("NVLS") > 0
}

// deterministic expects that NCCL sees the variable.
func deterministic() error {
	return caught(func() error {
		check(Deterministic())
		that(nil, "without NVLS", !sums())
		return Deterministic()
	})
}

// tooLate expects that NCCL may have read its variables.
func tooLate() error {
	return caught(func() error {
		that(nil, "with NVLS", sums())
		require.EqualError(new(rank), Deterministic(), "nccl: NCCL is loaded already and may sum in switches of NVLink, whose order differs between runs: "+
			"ask for deterministic sums before the first use of NCCL, or start the program with NCCL_ALGO=^NVLS,NVLSTree")
		return nil
	})
}

func TestDeterministic(t *testing.T) {
	runChild(t, "deterministic")
	runChild(t, "deterministic", "NCCL_ALGO=^nvls,nvlstree")
	runChild(t, "too late")
	for algo, want := range map[string]bool{
		"": false, "^NVLS": false, "^NVLS,NVLSTree": true, "Ring": true, "ring,tree": true, "NVLS": false, "Ring,NVLSTree": false,
		"allreduce:ring": false, "ring;allreduce:tree": true, "ring;allreduce:nvls": false, "ring;allreduce:^nvls": false, "^nvls,nvlstree,pat;allreduce:ring": true,
	} {
		require.Equal(t, want, excludesNVLS(algo), algo)
	}
	t.Setenv("NCCL_ALGO", "NVLS")
	require.EqualError(t, Deterministic(), "nccl: NCCL_ALGO=NVLS allows sums in switches of NVLink, whose order differs between runs: set it to ^NVLS,NVLSTree, or not at all")
	t.Setenv("NCCL_NVLS_ENABLE", "0")
	require.NoError(t, Deterministic())
}
