//go:build unix

package comm_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
)

// interruptVariable makes the test binary a process that waits to be interrupted.
const interruptVariable = "COMM_TEST_INTERRUPT"

// init runs this process. It prints the cause of its context, and exits when its standard input ends.
func init() {
	if os.Getenv(interruptVariable) == "" {
		return
	}
	var others []os.Signal
	if os.Getenv(interruptVariable) == "winch" {
		others = append(others, syscall.SIGWINCH)
	}
	ctx, stop := comm.Interrupt(context.Background(), others...)
	fmt.Println("ready")
	<-ctx.Done()
	fmt.Println(context.Cause(ctx))
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println("alive")
	}
	stop()
	os.Exit(0)
}

// TestInterrupt sends signals to a process. It says which one has interrupted it, and whether it is
// alive after each.
func TestInterrupt(t *testing.T) {
	const hup, term, usr1, usr2 = syscall.SIGHUP, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2
	heard := make(chan os.Signal, 1) // else the program ignores what nohup has this process ignore
	signal.Notify(heard, syscall.SIGINT, hup)
	defer signal.Stop(heard)
	slurm := "SLURM_JOB_ID=7"
	for _, c := range []struct {
		name    string
		env     []string
		ignored string
		send    []syscall.Signal
		cause   string // of the first that counts
		killed  syscall.Signal
	}{
		{name: "Ctrl-C", send: []syscall.Signal{syscall.SIGINT}, cause: "interrupt"},
		{name: "Ctrl-C twice", send: []syscall.Signal{syscall.SIGINT, syscall.SIGINT}, cause: "interrupt", killed: syscall.SIGINT},
		{name: "SIGTERM", send: []syscall.Signal{term}, cause: "terminated"},
		{name: "Ctrl-C and SIGTERM", send: []syscall.Signal{syscall.SIGINT, term}, cause: "interrupt", killed: term},
		{name: "a terminal closes", send: []syscall.Signal{hup, hup, hup}, cause: "hangup"},
		{name: "and a launcher ends", send: []syscall.Signal{hup, term, hup}, cause: "hangup"},
		{name: "and kills", send: []syscall.Signal{hup, term, term}, cause: "hangup", killed: term},
		{name: "systemd", send: []syscall.Signal{term, hup}, cause: "terminated"},
		{name: "nohup", ignored: "HUP", send: []syscall.Signal{hup, term}, cause: "terminated"},
		{name: "in the background", ignored: "INT", send: []syscall.Signal{syscall.SIGINT, usr1, hup}, cause: "hangup"},
		{name: "nohup and nothing else", ignored: "HUP", send: []syscall.Signal{hup, usr1, usr2, syscall.SIGWINCH, term}, cause: "terminated"},
		{name: "Slurm", env: []string{slurm}, send: []syscall.Signal{usr1, term}, cause: "user defined signal 1"},
		{name: "Slurm, nohup", env: []string{slurm}, ignored: "HUP", send: []syscall.Signal{usr2, usr2}, cause: "user defined signal 2"},
		{name: "the program's own signals", send: []syscall.Signal{usr1, usr2, term}, cause: "terminated"},
		{name: "another signal", env: []string{interruptVariable + "=winch"}, send: []syscall.Signal{syscall.SIGWINCH, term}, cause: "window changed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0])
			if c.ignored != "" {
				cmd = exec.Command("sh", "-c", `trap "" "$0"; exec "$1"`, c.ignored, os.Args[0])
			}
			cmd.Env = slices.DeleteFunc(os.Environ(), func(pair string) bool { return strings.HasPrefix(pair, "SLURM_JOB_ID=") })
			cmd.Env = append(append(cmd.Env, interruptVariable+"=1"), c.env...)
			in, err := cmd.StdinPipe()
			require.NoError(t, err)
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			lines := bufio.NewScanner(out)
			read := func() string {
				if !lines.Scan() {
					return ""
				}
				return lines.Text()
			}
			require.Equal(t, "ready", read())
			begun := false
			for i, sig := range c.send {
				require.NoError(t, cmd.Process.Signal(sig))
				if !begun && !strings.HasPrefix(sig.String(), c.cause) {
					continue // nothing comes of it
				}
				if !begun {
					begun = true
					require.Equal(t, c.cause+" signal received", read())
				}
				for last := c.killed != 0 && i == len(c.send)-1; ; {
					fmt.Fprintln(in)
					answer := read()
					if last && answer == "" {
						break
					}
					require.Equal(t, "alive", answer, "after %v", sig)
					if !last {
						break
					}
					require.NoError(t, cmd.Process.Signal(sig)) // the one before was not yet taken notice of
				}
			}
			require.NoError(t, in.Close())
			_ = cmd.Wait() // its status says it
			status := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if c.killed != 0 {
				require.True(t, status.Signaled())
				require.Equal(t, c.killed, status.Signal())
				return
			}
			require.Zero(t, status)
		})
	}
}

// TestInterruptStop gives signals back.
func TestInterruptStop(t *testing.T) {
	seen := make(chan os.Signal, 1)
	signal.Notify(seen, syscall.SIGHUP)
	defer signal.Stop(seen)
	parent, end := context.WithCancel(t.Context())
	ctx, stop := comm.Interrupt(parent)
	stop()
	require.ErrorIs(t, ctx.Err(), context.Canceled)
	ctx, stop = comm.Interrupt(parent)
	require.NoError(t, ctx.Err())
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	require.Equal(t, syscall.SIGHUP, <-seen)
	<-ctx.Done()
	require.ErrorContains(t, context.Cause(ctx), "hangup")
	stop()
	ctx, stop = comm.Interrupt(parent)
	end()
	<-ctx.Done()
	stop()
}
