package comm

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"

	"github.com/gofsdp/gofsdp/internal/launch"
)

// FromEnv returns this process's rank in the job that a launcher has started:
// it connects as [Connect] does, with what [ConfigFromEnv] finds. A process
// that no launcher has started is the only rank of a group of its own.
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

// ConfigFromEnv returns the configuration that the environment describes, and
// whether a launcher has left one: fsdprun, torchrun, Kubeflow, Open MPI, MPICH,
// Slurm or an Indexed Job of Kubernetes, told apart by the variables that they
// set. In any case these apply:
//
//	FSDP_RENDEZVOUS    tcp://host:port or file:///dir instead of the launcher's address
//	FSDP_SECRET        the key that ranks share, in hex or as text
//	FSDP_SECRET_FILE   the file that holds it, instead
//	FSDP_LISTEN        interface on which ranks of other hosts reach this one: eth0, 10.0.0.7
//	FSDP_TRANSPORT     auto, shm or tcp
//	FSDP_CHECKSUMS     auto, off or on, the same on all ranks: see [Checksums]
//	FSDP_TIMEOUT       how long an operation may make no progress: 90s
//	FSDP_JOIN_TIMEOUT  how long a rank waits for the others to join: 90s
//
// Variables that contradict each other are an error that names them.
func ConfigFromEnv() (cfg Config, launched bool, err error) {
	env, launched, err := launch.Parse(os.Getenv)
	if err != nil {
		return Config{}, launched, fmt.Errorf("comm: %w", err)
	}
	cfg = Config{
		Rank: env.Rank, Size: env.Size, LocalRank: env.LocalRank, LocalSize: env.LocalSize,
		Job:    cmp.Or(env.Job, "job") + fmt.Sprintf("#%d", env.Restart),
		Secret: env.Secret, Listen: env.Listen, Timeout: env.Timeout, JoinTimeout: env.JoinTimeout,
	}
	switch {
	case env.Dir != "":
		cfg.Rendezvous = fileScheme + env.Dir
	case env.Addr != "":
		cfg.Rendezvous = tcpScheme + env.Addr
	case launched:
		return Config{}, launched, fmt.Errorf("comm: rank %d of %d was started by %s, but nothing tells where ranks meet: "+
			"set MASTER_ADDR and MASTER_PORT, or FSDP_RENDEZVOUS", env.Rank, env.Size, env.Source)
	}
	if env.SecretFile != "" {
		text, err := os.ReadFile(env.SecretFile)
		if err == nil {
			cfg.Secret, err = launch.ParseSecret(bytes.TrimSpace(text))
		}
		if err != nil {
			return Config{}, launched, fmt.Errorf("comm: reading FSDP_SECRET_FILE: %w", err)
		}
	}
	if cfg.Transport, err = ParseTransport(env.Transport); err != nil {
		return Config{}, launched, err
	}
	cfg.Checksums, err = ParseChecksums(env.Checksums)
	return cfg, launched, err
}
