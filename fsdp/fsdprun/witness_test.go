//go:build unix

package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/launch"
)

// beginWitness starts a witness at an address.
func beginWitness(flags ...string) *running {
	r := &running{signals: make(chan os.Signal, 8), status: make(chan int, 1)}
	r.out.lines, r.err.lines = make(chan string, 100), make(chan string, 100)
	go func() {
		r.status <- run(flags, system{in: strings.NewReader(""), out: &r.out, err: &r.err, signals: r.signals, after: time.After})
	}()
	return r
}

// TestServeWitness ends a witness by a signal, also while its host has no such name.
func TestServeWitness(t *testing.T) {
	secret := secretFile(t)
	for address, said := range map[string]string{"127.0.0.1:0": "the witness answers at 127.0.0.1:", "nowhere.invalid:29600": "waiting for the name of this host"} {
		w := beginWitness("-serve-witness", address, "-secret-file", secret)
		w.err.await(said)
		w.signals <- syscall.SIGUSR1
		w.signals <- syscall.SIGTERM
		require.Equal(t, strings.HasPrefix(address, "nowhere"), <-w.status != 0, &w.err)
	}
	for text, flags := range map[string][]string{
		"several hosts need a common secret":     nil,
		"-serve-witness runs no program":         {"-secret-file", secret, "./train"},
		"-serve-witness: store: cannot serve on": {"-secret-file", secret, "-tls", "-serve-witness", "host"},
	} {
		w := beginWitness(append([]string{"-serve-witness", "127.0.0.1:0"}, flags...)...)
		require.NotZero(t, <-w.status)
		require.Contains(t, w.err.String(), text)
	}
}

// TestLostHostWithWitness kills the ranks of one of two hosts: the rank of the other host goes on
// alone, also if the lost one was rank 0.
func TestLostHostWithWitness(t *testing.T) {
	t.Setenv(launch.Replace, "1ms")
	for victim := range 2 {
		flags := hostFlags(t, 2, "-replace", "1")
		at := freeAddress(t)
		w := beginWitness("-serve-witness", at, "-secret-file", flags(0)[7])
		w.err.await("the witness answers")
		var hosts []*running
		for host := range 2 {
			hosts = append(hosts, begin(t, "go on", strings.NewReader(""), append(flags(host), "-witness", at), "1", fmt.Sprint(victim)))
		}
		for _, r := range hosts {
			require.Zero(t, <-r.status, &r.err)
		}
		require.Contains(t, hosts[1-victim].out.String(), "start 0 is 0 of 1\n")
		w.signals <- syscall.SIGTERM
		require.Zero(t, <-w.status, &w.err)
	}
}
