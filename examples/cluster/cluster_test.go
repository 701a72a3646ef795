//go:build unix

package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert/yaml"
	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
)

func text(t *testing.T, file string) string {
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(b)
}

// all finds the first group of a pattern in a text.
func all(text, pattern string) (found []string) {
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	return found
}

// TestNames checks that the flags of examples/gpt and the variables of this library exist that the
// files use.
func TestNames(t *testing.T) {
	flags := all(text(t, "../gpt/config.go"), `\(&c\.\w+, "([a-z-]+)"`)
	flags = append(flags, "data", "size")
	variables := all(text(t, "../../internal/launch/doc.go"), `\b(FSDP_[A-Z_]+)`)
	for _, file := range []string{"slurm.sbatch", "mpi.sh", "torchrun.sh", "job.yaml", "pytorchjob.yaml"} {
		content := text(t, file)
		used := all(content, `\b(FSDP_[A-Z_]+)`)
		require.NotEmpty(t, used, file)
		require.Subset(t, variables, used, file)
		given := regexp.MustCompile(`\./gpt .*|args: .*`).FindAllString(content, -1)
		used = all(strings.Join(given, "\n"), `[ \[]-([a-z][a-z-]*)`)
		require.Subset(t, used, []string{"save", "resume"}, file)
		require.Subset(t, flags, used, file)
	}
}

// start runs a script with programs that stand for those of the cluster, each a line of shell, and
// returns what they print.
func start(t *testing.T, programs map[string]string, script string, args ...string) (string, error) {
	dir := t.TempDir()
	for name, line := range programs {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+line+"\n"), 0o700))
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	out, err := exec.Command("bash", append([]string{script}, args...)...).CombinedOutput()
	return string(out), err
}

// TestSlurm checks that a job is requeued where its ranks have saved and are not at the end, and
// nowhere else.
func TestSlurm(t *testing.T) {
	t.Setenv("SLURM_JOB_ID", "42")
	for _, status := range []int{0, 1, 143} {
		out, err := start(t, map[string]string{
			"srun":     fmt.Sprintf(`echo "srun $@ $FSDP_LISTEN ${#FSDP_SECRET}"; exit %d`, status),
			"scontrol": `echo "scontrol $@"`,
		}, "slurm.sbatch", "-steps", "9")
		want := "srun --kill-on-bad-exit=1 ./gpt -save ckpt-42 -resume -interrupted 143 -steps 9 eth0 44\n"
		if status == 143 {
			want += "scontrol requeue 42\n"
		}
		require.Equal(t, want, out)
		if status != 0 {
			require.ErrorContains(t, err, fmt.Sprintf("exit status %d", status))
		}
	}
}

func TestMPI(t *testing.T) {
	hosts := filepath.Join(t.TempDir(), "hosts")
	require.NoError(t, os.WriteFile(hosts, []byte("# name, ranks\n\nnode7 slots=2\nnode8 slots=2\n"), 0o600))
	out, err := start(t, map[string]string{"mpirun": `echo "$@ $MASTER_ADDR $MASTER_PORT $FSDP_LISTEN ${#FSDP_SECRET}"`}, "mpi.sh", hosts, "-steps", "9")
	require.NoError(t, err)
	require.Equal(t, "--hostfile "+hosts+" --mca odls_base_sigkill_timeout 15 -x MASTER_ADDR -x MASTER_PORT -x FSDP_SECRET -x FSDP_LISTEN "+
		"./gpt -plain -save ckpt -resume -steps 9 node7 29500 eth0 44\n", out)
}

func TestTorchrun(t *testing.T) {
	torchrun := map[string]string{"torchrun": `echo "$@"`}
	out, err := start(t, torchrun, "torchrun.sh", "-steps", "9")
	require.NoError(t, err)
	require.Equal(t, "--standalone --nproc-per-node=4 --max-restarts=3 --no-python ./gpt -save ckpt -resume -steps 9\n", out)
	t.Setenv("HOSTS", "2")
	t.Setenv("HOST0", "node7")
	out, err = start(t, torchrun, "torchrun.sh")
	require.NoError(t, err)
	require.Contains(t, out, "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=node7:29400 ")
}

// container is a part of the pods in the manifests.
type container struct {
	Env []struct {
		Name, Value string
		ValueFrom   map[string]any `yaml:"valueFrom"`
	}
}

// rank returns the place of a pod whose container has an environment, after what its launcher adds.
func rank(t *testing.T, c container, launcher map[string]string) comm.Config {
	t.Setenv("FSDP_SECRET", "in place of a secret of the cluster")
	t.Setenv("FSDP_LISTEN", "10.0.0.7")
	for name, value := range launcher {
		t.Setenv(name, value)
	}
	for _, v := range c.Env {
		if v.ValueFrom == nil {
			t.Setenv(v.Name, v.Value)
		}
	}
	cfg, launched, err := comm.ConfigFromEnv()
	require.NoError(t, err)
	require.True(t, launched)
	return cfg
}

// TestJob checks what the parts of job.yaml have to agree in. Kubernetes' own checks are package
// kubecheck's.
func TestJob(t *testing.T) {
	documents := strings.Split(text(t, "job.yaml"), "\n---\n")
	var job struct {
		Metadata struct{ Name string }
		Spec     struct {
			Completions, Parallelism int
			Template                 struct {
				Spec struct {
					Subdomain  string
					Containers []container
				}
			}
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(documents[len(documents)-1]), &job))
	pod := job.Spec.Template.Spec
	require.Len(t, pod.Containers, 1)
	require.Equal(t, job.Spec.Completions, job.Spec.Parallelism)
	for i := range job.Spec.Completions {
		cfg := rank(t, pod.Containers[0], map[string]string{"JOB_COMPLETION_INDEX": fmt.Sprint(i), "HOSTNAME": fmt.Sprintf("%s-%d", job.Metadata.Name, i)})
		require.Equal(t, []int{i, job.Spec.Completions, 0, 1}, []int{cfg.Rank, cfg.Size, cfg.LocalRank, cfg.LocalSize})
		require.Equal(t, fmt.Sprintf("tcp://%s-0.%s:29500", job.Metadata.Name, pod.Subdomain), cfg.Rendezvous)
	}
}

func TestPyTorchJob(t *testing.T) {
	var job struct {
		Metadata struct{ Name string }
		Spec     struct {
			NprocPerNode string `yaml:"nprocPerNode"`
			Replicas     map[string]struct {
				Replicas int
				Template struct {
					Spec struct{ Containers []container }
				}
			} `yaml:"pytorchReplicaSpecs"`
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(text(t, "pytorchjob.yaml")), &job))
	size := job.Spec.Replicas["Master"].Replicas + job.Spec.Replicas["Worker"].Replicas
	for _, replicas := range job.Spec.Replicas {
		containers := replicas.Template.Spec.Containers
		require.Len(t, containers, 1)
		cfg := rank(t, containers[0], map[string]string{ // what the operator adds, see kubecheck
			"MASTER_ADDR": job.Metadata.Name + "-master-0", "MASTER_PORT": "23456", "RANK": "1", "WORLD_SIZE": fmt.Sprint(size),
			"PET_NODE_RANK": "1", "PET_NNODES": fmt.Sprint(size), "PET_NPROC_PER_NODE": job.Spec.NprocPerNode,
		})
		require.Equal(t, []int{1, 4, 0, 1}, []int{cfg.Rank, cfg.Size, cfg.LocalRank, cfg.LocalSize})
		require.Equal(t, "tcp://gpt-master-0:23456", cfg.Rendezvous)
	}
}
