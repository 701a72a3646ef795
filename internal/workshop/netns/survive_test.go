//go:build netns

package netns

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A survivor is fsdprun on a host, with a rank that continues when others are lost.
type survivor struct {
	cmd   *exec.Cmd
	lines chan string
}

func (s *survivor) await(t *testing.T, text string) {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case line, more := <-s.lines:
			require.True(t, more, "it has ended without %q", text)
			if strings.Contains(line, text) {
				return
			}
		case <-late:
			t.Fatalf("no line %q", text)
		}
	}
}

// rest returns the lines until the end.
func (s *survivor) rest() (lines []string) {
	for line := range s.lines {
		lines = append(lines, line)
	}
	return lines
}

// TestHost0CutOff cuts host 0 off from two others. They continue, and host 0 does not. Then one of
// them leaves as planned, and the other one continues alone.
func TestHost0CutOff(t *testing.T) {
	n, dir := build(t, 3), t.TempDir()
	must(t, "go -C ../../.. build -o", dir+"/", "./fsdp/fsdprun")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "key"), []byte("a secret of these tests only"), 0o600))
	var hosts []*survivor
	for host := range 3 {
		s := &survivor{lines: make(chan string, 10000)}
		s.cmd = exec.Command("ip", "netns", "exec", space(host), filepath.Join(dir, "fsdprun"), "-n", "1", "-nnodes", "3", "-node-rank", strconv.Itoa(host),
			"-rdzv", "10.77.0.1:29500", "-secret-file", filepath.Join(dir, "key"), "-replace", "1", "-join-timeout", "40s", os.Args[0])
		s.cmd.Env = append(os.Environ(), "FSDP_REPLACE=1s", orderVariable+`={"Program":"survive"}`)
		out, err := s.cmd.StdoutPipe()
		require.NoError(t, err)
		s.cmd.Stderr = s.cmd.Stdout
		require.NoError(t, s.cmd.Start())
		t.Cleanup(func() {
			_ = s.cmd.Process.Kill() // it may have ended
			_ = s.cmd.Wait()
		})
		go func() {
			defer close(s.lines)
			for scan := bufio.NewScanner(out); scan.Scan(); {
				s.lines <- scan.Text()
			}
		}()
		hosts = append(hosts, s)
	}
	for _, s := range hosts {
		s.await(t, "of 3")
	}
	hosts[0].await(t, "all ranks have joined")

	begin := time.Now()
	n.unplug(t, 0)
	hosts[1].await(t, "rank 0 of 2")
	hosts[2].await(t, "rank 1 of 2")
	took(t, "link of host 0 cut", begin, time.Now(), 2*silence+20*time.Second) // the ranks notice, and agree
	require.NoError(t, hosts[1].cmd.Process.Signal(syscall.SIGTERM))
	begin = time.Now()
	hosts[2].await(t, "rank 0 of 1")
	took(t, "host 1 leaves", begin, time.Now(), 5*time.Second)
	hosts[1].rest()
	require.NoError(t, hosts[1].cmd.Wait())
	require.NoError(t, hosts[2].cmd.Process.Signal(syscall.SIGTERM))
	hosts[2].rest()
	require.NoError(t, hosts[2].cmd.Wait())
	for _, line := range hosts[0].rest() {
		require.NotContains(t, line, "] rank ", "host 0 continues")
	}
	require.Error(t, hosts[0].cmd.Wait(), "host 0 has ended well")
}
