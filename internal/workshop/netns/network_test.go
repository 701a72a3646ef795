//go:build netns

package netns

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// network is a switch and hosts on it.
type network struct{ hosts int }

// space names the namespace of a host. The names are of this process: several
// may test at a time.
func space(host int) string { return fmt.Sprintf("gofsdp-%d-host%d", os.Getpid(), host) }

func switchSpace() string { return fmt.Sprintf("gofsdp-%d-switch", os.Getpid()) }

// build makes a network that is torn down when the test ends.
func build(t *testing.T, hosts int) *network {
	n := &network{hosts}
	must(t, "ip netns add", switchSpace())
	t.Cleanup(func() { must(t, "ip netns del", switchSpace()) })
	inSwitch := "ip -n " + switchSpace() + " "
	must(t, inSwitch+"link add bridge type bridge")
	must(t, inSwitch+"link set bridge up")
	for h := range hosts {
		must(t, "ip netns add", space(h))
		t.Cleanup(func() { must(t, "ip netns del", space(h)) })
		in := "ip -n " + space(h) + " "
		must(t, in+"link add eth0 mtu 1500 type veth peer name", port(h), "mtu 1500 netns", switchSpace())
		must(t, in+"link set lo up")
		must(t, in+"link set eth0 up")
		must(t, in+"address add", fmt.Sprintf("10.77.0.%d/24", h+1), "dev eth0")
		must(t, inSwitch+"link set", port(h), "master bridge")
		must(t, inSwitch+"link set", port(h), "up")
	}
	return n
}

func port(host int) string { return fmt.Sprintf("port%d", host) }

// unplug takes a host off the switch: no packet passes any more, and nobody is told.
func (n *network) unplug(t *testing.T, host int) {
	must(t, "ip -n", switchSpace(), "link set", port(host), "down")
}

// plug puts it back.
func (n *network) plug(t *testing.T, host int) {
	must(t, "ip -n", switchSpace(), "link set", port(host), "up")
}

// lose makes every port lose packets, and says how. lost counts them.
func (n *network) lose(t *testing.T) (how string, lost func() int) {
	// Not every kernel can lose packets at random. A short queue behind a slow
	// link loses them as routers do.
	ways := []string{"netem loss 1%", "tbf rate 300mbit burst 8kb limit 24kb"}
	for _, how = range ways {
		if _, err := command("tc -n " + switchSpace() + " qdisc add dev " + port(0) + " root " + how); err == nil {
			break
		}
	}
	for h := 1; h < n.hosts; h++ {
		must(t, "tc -n", switchSpace(), "qdisc add dev", port(h), "root", how)
	}
	return how, func() (sum int) {
		for h := range n.hosts {
			out := must(t, "tc -n", switchSpace(), "-s qdisc show dev", port(h))
			_, after, _ := strings.Cut(out, "(dropped ")
			var dropped int
			_, err := fmt.Sscanf(after, "%d", &dropped)
			require.NoError(t, err, out)
			sum += dropped
		}
		return sum
	}
}

// must runs a command and returns its output.
func must(t *testing.T, words ...string) string {
	t.Helper()
	out, err := command(strings.Join(words, " "))
	require.NoError(t, err)
	return out
}

func command(line string) (string, error) {
	words := strings.Fields(line)
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", line, err, out)
	}
	return string(out), nil
}
