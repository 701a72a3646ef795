package main

import (
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownGroup makes a process the leader of a new group, and has it killed when the thread that
// started it ends.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitExit returns when the process has ended, but does not reap it: until then no other process
// gets its number or the number of its group.
func awaitExit(cmd *exec.Cmd) {
	for unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

// hasExited reports whether the process has ended, as far as this is known without waiting for it.
func hasExited(cmd *exec.Cmd) bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
	return err == nil && info.Signo != 0
}

const canPin = true

// allowedCores returns the numbers of the cores that this process may use.
func allowedCores() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, err
	}
	cores := make([]int, 0, set.Count())
	for c := 0; len(cores) < set.Count(); c++ {
		if set.IsSet(c) {
			cores = append(cores, c)
		}
	}
	return cores, nil
}

// setCores restricts the calling thread, and the processes that it starts.
func setCores(cores []int) error {
	var set unix.CPUSet
	for _, c := range cores {
		set.Set(c)
	}
	return unix.SchedSetaffinity(0, &set)
}
