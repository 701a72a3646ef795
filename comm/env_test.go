package comm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/launch"
)

// bare removes what a launcher of the tests may have left in the environment.
func bare(t *testing.T) {
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "FSDP_") {
			t.Setenv(name, "")
		}
	}
	for _, name := range []string{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} {
		t.Setenv(name, "")
	}
}

func TestConfigFromEnv(t *testing.T) {
	bare(t)
	cfg, launched, err := ConfigFromEnv()
	require.NoError(t, err)
	require.False(t, launched)
	require.Zero(t, cfg.Rendezvous)

	for name, value := range map[string]string{"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.1.2.3",
		"MASTER_PORT": "1234", "FSDP_SECRET": "sixteen letters!", "FSDP_LISTEN": "eth0", "FSDP_TIMEOUT": "90s", "FSDP_TRANSPORT": "tcp", "FSDP_CHECKSUMS": "off",
		"FSDP_TLS": "1", "FSDP_TRUST_NETWORK": "1", "FSDP_JOB": "mine"} {
		t.Setenv(name, value)
	}
	cfg, launched, err = ConfigFromEnv()
	require.NoError(t, err)
	require.True(t, launched)
	require.Equal(t, Config{
		Rank: 3, Size: 8, LocalRank: 1, LocalSize: 2, Rendezvous: "tcp://10.1.2.3:1234", Job: "mine#0",
		Secret: []byte("sixteen letters!"), TrustNetwork: true, TLS: true, Listen: "eth0", Transport: TCP, Checksums: ChecksumsOff, Timeout: 90 * time.Second,
	}, cfg)

	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		require.NotContains(t, fmt.Sprintf(verb, cfg), "sixteen")
		require.NotContains(t, fmt.Sprintf(verb, cfg), "115, 105, 120")
	}

	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte("another sixteen or so\n"), 0o600))
	t.Setenv("FSDP_SECRET", "")
	t.Setenv("FSDP_SECRET_FILE", file)
	t.Setenv("FSDP_RENDEZVOUS", "file:///shared/job")
	cfg, _, err = ConfigFromEnv()
	require.NoError(t, err)
	require.Equal(t, "another sixteen or so", string(cfg.Secret))
	require.Equal(t, "file:///shared/job", cfg.Rendezvous)
	require.NoError(t, os.WriteFile(file, make([]byte, 64<<10+1), 0o600))
	_, _, err = ConfigFromEnv()
	require.ErrorContains(t, err, "has more than 65536 bytes, which is too long for a secret", "it was cut")
	t.Setenv("FSDP_SECRET_FILE", file+".none")
	_, _, err = ConfigFromEnv()
	require.ErrorContains(t, err, "FSDP_SECRET_FILE")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestReadableSecret warns about a file that others can read, once for each host.
func TestReadableSecret(t *testing.T) {
	bare(t)
	log := captureDefault(t)
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte("another sixteen or so\n"), 0o600))
	t.Setenv("FSDP_SECRET_FILE", file)
	for _, c := range []struct {
		mode  os.FileMode
		local string
		want  string
	}{{0o600, "0", ""}, {0o640, "1", ""}, {0o640, "0", "chmod 600"}} {
		require.NoError(t, os.Chmod(file, c.mode))
		for name, value := range map[string]string{"RANK": c.local, "WORLD_SIZE": "2", "LOCAL_RANK": c.local, "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "h"} {
			t.Setenv(name, value)
		}
		_, _, err := ConfigFromEnv()
		require.NoError(t, err)
		require.Equal(t, c.want != "", strings.Contains(log(), "other users can read the secret of this job: run chmod 600 on the file"), c)
	}
}

// TestProgramName tells jobs apart that nobody has named.
func TestProgramName(t *testing.T) {
	args := os.Args
	defer func() { os.Args = args }()
	name := func(directory bool, args ...string) string {
		os.Args = args
		name, err := programName(directory)
		require.NoError(t, err)
		return name
	}
	here := name(true, "/a/train", "-lr", "0.1")
	require.Regexp(t, "^train [0-9a-f]{12}$", here)
	require.Equal(t, here, name(true, "/b/train", "-lr", "0.1"), "go run builds it somewhere else each time")
	far := name(false, "/a/train", "-lr", "0.1")
	others := []string{here, far, name(true, "train", "-lr", "0.2"), name(true, "train", "-lr=0.1"), name(true, "other", "-lr", "0.1")}
	dir, err := os.Getwd()
	require.NoError(t, err)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err == nil { // a user of Windows may not
		t.Chdir(link)
		require.Equal(t, here, name(true, "/a/train", "-lr", "0.1"))
	}
	t.Chdir(t.TempDir())
	others = append(others, name(true, "/a/train", "-lr", "0.1"))
	require.Equal(t, far, name(false, "train", "-lr", "0.1"))
	slices.Sort(others)
	require.Len(t, slices.Compact(others), 6)
	require.Less(t, len(name(true, strings.Repeat("x", 500))), 100, "it fits a hello")
}

// TestMisspelledVariable warns once for each host.
func TestMisspelledVariable(t *testing.T) {
	bare(t)
	log := captureDefault(t)
	t.Setenv("FSDP_TRANSPROT", "tcp")
	const want = "FSDP_TRANSPROT is not used: did you mean FSDP_TRANSPORT?"
	for _, local := range []string{"0", "1"} {
		for name, value := range map[string]string{"RANK": local, "WORLD_SIZE": "2", "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "h"} {
			t.Setenv(name, value)
		}
		cfg, _, err := ConfigFromEnv()
		require.NoError(t, err)
		require.Equal(t, Auto, cfg.Transport)
		require.Equal(t, 1, strings.Count(log(), want), "after rank %s", local)
	}
}

// TestWithoutSrun runs goroutine ranks in the script of a Slurm job of two tasks.
func TestWithoutSrun(t *testing.T) {
	bare(t)
	log := captureDefault(t)
	for name, value := range map[string]string{"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"} {
		t.Setenv(name, value)
	}
	require.NoError(t, Run(t.Context(), 2, func(context.Context, Group) error { return nil }))
	require.Equal(t, 1, strings.Count(log(), "comm: this process is in the script or shell of Slurm job 7, and is none of its 2 tasks"), log())
	for name, value := range map[string]string{"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h"} { // of fsdprun in that script
		t.Setenv(name, value)
	}
	_, _, err := ConfigFromEnv()
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(log(), "Slurm"), log())
}

// TestLeftOverVariables: a rank of srun does not train alone because the shell had a WORLD_SIZE.
func TestLeftOverVariables(t *testing.T) {
	bare(t)
	for name, value := range map[string]string{"RANK": "0", "WORLD_SIZE": "1", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3",
		"SLURM_NTASKS": "8", "SLURM_STEP_NODELIST": "a"} {
		t.Setenv(name, value)
	}
	const want = "comm: launch: RANK=0 WORLD_SIZE=1 (torchrun) and SLURM_PROCID=3 SLURM_NTASKS=8 (Slurm) contradict each other"
	_, err := FromEnv(t.Context())
	require.ErrorContains(t, err, want)
	require.ErrorContains(t, Run(t.Context(), 2, func(context.Context, Group) error { panic("it runs") }), want)
}

func TestFromEnvAlone(t *testing.T) {
	bare(t)
	g, err := FromEnv(context.Background())
	require.NoError(t, err)
	require.Equal(t, 1, g.Size())
	require.NoError(t, g.Close())
}

// TestConnectRefuses checks configurations that cannot work, before anything is tried.
func TestConnectRefuses(t *testing.T) {
	ownKeyDir(t)
	good := Config{Rank: 0, Size: 1, Rendezvous: "file://" + t.TempDir()}
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.Size = 0 }, "Config.Rank is 0 and Config.Size is 0: want a size of at least 1"},
		{func(c *Config) { c.Rank = 1 }, "Config.Rank is 1 and Config.Size is 1: want a size of at least 1, and a rank from 0 to size-1"},
		{func(c *Config) { c.Size = launch.MaxSize + 1 }, "Config.Size is 16385, at most 16384 ranks are allowed"},
		{func(c *Config) { c.Timeout = -1 }, "negative"},
		{func(c *Config) { c.Job, c.Rendezvous = strings.Repeat("x", 300), "tcp://127.0.0.1:1" }, "the job name has 300 bytes, at most 128 are allowed"},
		{func(c *Config) { c.Transport = 9 }, "Transport(9)"},
		{func(c *Config) { c.Checksums = 3 }, "Checksums(3)"},
		{func(c *Config) { c.Listen = "eth0" }, `listening on "eth0" needs a secret: ranks of several hosts need a shared secret, so that no other process can join: run ` +
			`export FSDP_SECRET=$(head -c 32 /dev/urandom | base64) once`},
		{func(c *Config) { c.Rendezvous = "tcp://192.0.2.1:29500" }, "export FSDP_SECRET="},
		{func(c *Config) { c.TLS, c.TrustNetwork = true, true }, "TLS without a secret"},
		{func(c *Config) { c.Rendezvous = "" }, "tcp://"},
		{func(c *Config) { c.Rendezvous = "http://localhost:80" }, "http://localhost:80"},
		{func(c *Config) { c.Rendezvous = "tcp://localhost" }, "localhost"},
		{func(c *Config) { c.Rendezvous = "tcp://192.0.2.1:29500"; c.Secret = make([]byte, 16) }, "Listen"},
		{func(c *Config) { c.Secret = []byte("short") }, "16"},
	} {
		cfg := good
		c.change(&cfg)
		_, err := Connect(context.Background(), cfg)
		require.ErrorContains(t, err, c.want)
	}
}
