package comm

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"

	"github.com/gofsdp/gofsdp/internal/launch"
	"github.com/gofsdp/gofsdp/internal/text"
)

// FromEnv returns this process's rank in the job that a launcher has started: it connects
// as [Connect] does, with the result of [ConfigFromEnv]. A process that no launcher has
// started is the only rank of its own group.
func FromEnv(ctx context.Context) (Group, error) {
	cfg, launched, err := ConfigFromEnv()
	if err != nil {
		return nil, err
	}
	if !launched {
		return Local(1)[0], nil
	}
	return Connect(ctx, cfg)
}

// ConfigFromEnv returns the configuration that the environment describes, and whether a
// launcher has left one: fsdprun, torchrun, Kubeflow, Open MPI, MPICH, Slurm or an
// Indexed Job of Kubernetes, recognized by the variables that they set. In any case these
// apply:
//
//	FSDP_RENDEZVOUS    tcp://host:port or file:///dir instead of the launcher's address
//	FSDP_SECRET        the key that ranks share, in hex or as text
//	FSDP_SECRET_FILE   the file that holds it, instead
//	FSDP_TRUST_NETWORK 1: ranks of several hosts need no secret: any process that can reach them may join
//	FSDP_TLS           1: TCP connections are encrypted
//	FSDP_JOB           a name of the job, added to the launcher's name: jobs with different names never mix
//	FSDP_LISTEN        interface on which ranks of other hosts reach this one: eth0, 10.0.0.7, 10.0.0.0/24,
//	                   or several with commas between, see [Config.Listen]
//	FSDP_TRANSPORT     auto, shm or tcp
//	FSDP_CHECKSUMS     auto, off or on, the same on all ranks: see [Checksums]
//	FSDP_TIMEOUT       how long an operation may make no progress: 90s
//	FSDP_JOIN_TIMEOUT  how long a rank waits for the others to join: 90s
//	FSDP_JOIN          1: the process joins a running job, see Join of [Config]
//	FSDP_MEMBERS       directory in which a process that joins finds the job, see Members of [Config]
//	FSDP_REPLACE       how long Reconnect waits for processes that replace lost ranks: 90s
//	FSDP_WITNESS       host:port of a witness, the same on all ranks: see Witness of [Config]
//
// A job without a name, because no launcher has started it, gets one from the program,
// its arguments and, unless FSDP_LISTEN is set, its directory. So the ranks of two such
// jobs on one port do not take each other for their own. Equal jobs in one directory do;
// FSDP_JOB distinguishes them.
//
// Variables that contradict each other are an error that names them, and says which to
// unset: a leftover WORLD_SIZE=1 must not make each task of srun train alone. A secret
// file that other users can read is a warning on slog.Default(), and so is a name that is
// nearly one of these.
func ConfigFromEnv() (cfg Config, launched bool, err error) {
	env, launched, err := launch.Parse(os.Getenv)
	if err != nil {
		return Config{}, launched, fmt.Errorf("comm: %w", err)
	}
	if env.LocalRank <= 0 { // once for a host
		for _, text := range launch.Misspelled(os.Environ()) {
			slog.Warn(text)
		}
	}
	if text := launch.WithoutSrun(os.Getenv); text != "" && !launched {
		slog.Warn("comm: " + text)
	}
	cfg = Config{
		Rank: env.Rank, Size: env.Size, LocalRank: env.LocalRank, LocalSize: env.LocalSize,
		Secret: env.Secret, TrustNetwork: env.TrustNetwork, TLS: env.TLS, Listen: env.Listen,
		Timeout: env.Timeout, JoinTimeout: env.JoinTimeout, Join: env.Join, Members: env.Members, ReplaceTimeout: env.Replace,
		Witness: env.Witness,
	}
	if env.Job == "" {
		if env.Job, err = programName(env.Listen == ""); err != nil {
			return Config{}, launched, err
		}
	}
	cfg.Job = fmt.Sprintf("%s#%d", env.Job, env.Restart)
	switch {
	case env.Dir != "":
		cfg.Rendezvous = fileScheme + env.Dir
	case env.Addr != "":
		cfg.Rendezvous = tcpScheme + env.Addr
	case launched:
		return Config{}, launched, fmt.Errorf("comm: rank %d of %d was started by %s, which gives no address where the ranks meet: "+
			"set MASTER_ADDR and MASTER_PORT, or FSDP_RENDEZVOUS", env.Rank, env.Size, env.Source)
	}
	if env.SecretFile != "" {
		var mode fs.FileMode
		if cfg.Secret, mode, err = launch.ReadSecret(env.SecretFile); err != nil {
			return Config{}, launched, fmt.Errorf("comm: reading FSDP_SECRET_FILE: %w", err)
		}
		if env.LocalRank <= 0 && runtime.GOOS != "windows" && mode.Perm()&0o077 != 0 {
			slog.Warn("other users can read the secret of this job: run chmod 600 on the file", "file", env.SecretFile, "mode", mode.String())
		}
	}
	if cfg.Transport, err = ParseTransport(env.Transport); err != nil {
		return Config{}, launched, err
	}
	cfg.Checksums, err = parseChecksums(env.Checksums)
	return cfg, launched, err
}

// programName returns a name for a job that has none: the same for processes of one
// program with the same arguments and, if directory is set, in the same directory, and
// different for others.
func programName(directory bool) (string, error) {
	parts := os.Args[1:]
	if directory {
		dir, err := os.Getwd()
		if err == nil {
			dir, err = filepath.EvalSymlinks(dir) // Getwd believes $PWD, which has links
		}
		if err != nil {
			return "", fmt.Errorf("comm: cannot name this job after its directory: set FSDP_JOB: %w", err)
		}
		parts = append([]string{dir}, parts...)
	}
	program := filepath.Base(os.Args[0])
	hash := sha256.Sum256(fmt.Appendf(nil, "%t %q %q", directory, program, parts))
	return fmt.Sprintf("%s %x", text.Cut(program, 64), hash[:6]), nil
}
