package comm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// own puts the process into a new group, so that only the driver receives an interrupt from the
// terminal, and makes it die with the driver.
func own(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// killGroup kills a process started after own and all in its group.
func killGroup(p *os.Process) { unix.Kill(-p.Pid, unix.SIGKILL) }

func killProcess(pid int) { unix.Kill(pid, unix.SIGKILL) }

// enterNamespace moves this thread, and with it all processes that it will start, into a network
// namespace with a loopback that is fair to all candidates: acknowledgements are not delayed, and
// congestion control is reno. The namespace ends with the last of the processes. The thread must be
// locked.
func enterNamespace() error {
	ip, err := exec.LookPath("ip")
	if err != nil {
		return fmt.Errorf("no network namespace: %w (apt-get install iproute2)", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("no network namespace: unshare: %w (root is needed)", err)
	}
	if _, err := output(ip, "link", "set", "lo", "up"); err != nil {
		return err
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte("reno"), 0); err != nil {
		return err
	}
	routes, err := output(ip, "route", "show", "table", "local")
	if err != nil {
		return err
	}
	for line := range strings.Lines(routes) {
		args := append([]string{"route", "change", "table", "local"}, strings.Fields(line)...)
		if _, err := output(ip, append(args, "quickack", "1")...); err != nil {
			return err
		}
	}
	return nil
}

// output runs a command and returns its output.
func output(path string, args ...string) (string, error) {
	text, err := exec.Command(path, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(path), strings.Join(args, " "), err, text)
	}
	return string(text), nil
}
