//go:build linux && cgo

package nccl

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func init() {
	scripts["rank"] = processRank
	scripts["deserted"] = deserted
	scripts["deserter"] = deserter
}

// process opens the rank of a child process.
func process() (r *rank, end func() error) {
	n, me := must(strconv.Atoi(os.Getenv("WORLD_SIZE"))), must(strconv.Atoi(os.Getenv("RANK")))
	var id UniqueID
	must(hex.Decode(id[:], []byte(os.Getenv("ID"))))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	r = &rank{ctx: ctx}
	r.open(must(strconv.Atoi(os.Getenv("DEVICE"))))
	r.Communicator = must(NewCommunicator(ctx, r.dev, n, id, me, Config{}))
	return r, func() error { cancel(); return r.close() }
}

// processes are the ranks 0 to n-1 of a new communicator, which run scripts.
func processes(t *testing.T, device func(r int) int, names ...string) []*exec.Cmd {
	doubles(t)
	id, err := NewUniqueID()
	require.NoError(t, err)
	list := make([]*exec.Cmd, len(names))
	for r, name := range names {
		list[r] = child(t, name, "WORLD_SIZE="+strconv.Itoa(len(names)), "RANK="+strconv.Itoa(r),
			"ID="+hex.EncodeToString(id[:]), "DEVICE="+strconv.Itoa(device(r)), "NCCL_HOSTID=host"+strconv.Itoa(r))
	}
	return list
}

func processRank() error {
	return caught(func() error {
		r, end := process()
		r.alloc(3*guard+8*40_001*r.Size(), func(memory uintptr) {
			for _, x := range trials(r.Size())[:60] {
				check(x.run(r, memory))
			}
			for _, x := range trials(r.Size())[len(trials(r.Size()))-10:] {
				check(x.run(r, memory))
			}
		})
		c := must(r.Split(r.ctx, 0, -r.Rank(), Config{}))
		that(nil, "turned around", c.Rank() == r.Size()-1-r.Rank())
		check(errors.Join(c.Finalize(r.ctx), c.Destroy(), r.Finalize(r.ctx), r.Destroy()))
		return end()
	})
}

// Two processes, each with a GPU of its own or, as if they were on two hosts, on one.
func TestProcesses(t *testing.T) {
	for name, device := range map[string]func(int) int{
		"two devices": func(r int) int { return r },
		"one device":  func(int) int { return 0 },
	} {
		t.Run(name, func(t *testing.T) {
			list := processes(t, device, "rank", "rank")
			for i, err := range each(2, func(r int) error {
				out, err := list[r].CombinedOutput()
				if err != nil {
					return fmt.Errorf("%w\n%s", err, out)
				}
				return nil
			}) {
				require.NoError(t, err, "rank %d", i)
			}
		})
	}
}

func deserter() error {
	return caught(func() error {
		process()
		os.Exit(3)
		return nil
	})
}

func deserted() error {
	return caught(func() error {
		r, end := process()
		r.alloc(8, func(p uintptr) {
			check(r.AllReduce(p, p, 8, Uint8, Sum, r.stream.Handle()))
			eventually(r.ctx, func() bool { return r.AsyncError() != nil })
			that(r.AsyncError(), "a remote error", errors.Is(r.AsyncError(), RemoteError))
			check(r.Abort())
			check(r.stream.Sync())
		})
		return end()
	})
}

// A process that ends without a word is a remote error to the others.
func TestDeadProcess(t *testing.T) {
	list := processes(t, func(r int) int { return r }, "deserted", "deserter")
	errs := each(2, func(r int) error {
		out, err := list[r].CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
	require.NoError(t, errs[0])
	require.ErrorContains(t, errs[1], "exit status 3")
}
