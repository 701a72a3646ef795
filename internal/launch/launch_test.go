package launch

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// environment returns a getenv over lines "NAME=value".
func environment(lines string) func(string) string {
	env := make(map[string]string)
	for line := range strings.FieldsSeq(lines) {
		name, value, _ := strings.Cut(line, "=")
		env[name] = value
	}
	return func(name string) string { return env[name] }
}

func TestConventions(t *testing.T) {
	for _, c := range []struct {
		name, env string
		want      Env
	}{
		{"by hand", "RANK=1 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=4000",
			Env{Source: "torchrun", Rank: 1, Size: 2, LocalRank: -1, NodeRank: -1, Addr: "10.0.0.1:4000"}},
		{"by hand, IPv6 and the usual port", "RANK=0 WORLD_SIZE=1 MASTER_ADDR=[::1]",
			Env{Source: "torchrun", Size: 1, LocalRank: -1, NodeRank: -1, Addr: "[::1]:29500"}},
		{"torchrun, two hosts", "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 GROUP_WORLD_SIZE=2 ROLE_RANK=5" +
			" MASTER_ADDR=h0 MASTER_PORT=29400 TORCHELASTIC_RUN_ID=x TORCHELASTIC_RESTART_COUNT=2 TORCHELASTIC_USE_AGENT_STORE=False",
			Env{Source: "torchrun", Rank: 5, Size: 8, LocalRank: 1, LocalSize: 4, NodeRank: 1, Nodes: 2, Addr: "h0:29400", Job: "x", Restart: 2}},
		{"torchrun, whose agent listens on the port", "RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 GROUP_RANK=0" +
			" MASTER_ADDR=h0 MASTER_PORT=65535 TORCHELASTIC_USE_AGENT_STORE=True",
			Env{Source: "torchrun", Size: 4, LocalSize: 2, Nodes: 2, Addr: "h0:65534"}},
		{"torchrun below Kubeflow", "PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=2 JOB_COMPLETION_INDEX=1" +
			" RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 MASTER_ADDR=m MASTER_PORT=1",
			Env{Source: "torchrun", Rank: 3, Size: 4, LocalRank: 1, LocalSize: 2, NodeRank: 1, Nodes: 2, Addr: "m:1"}},
		{"torchrun below Slurm", "SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1 RANK=3 WORLD_SIZE=4",
			Env{Source: "torchrun", Rank: 3, Size: 4, LocalRank: -1, NodeRank: -1}},
		{"Kubeflow PyTorchJob", "PET_NNODES=3 PET_NODE_RANK=2 PET_NPROC_PER_NODE=auto RANK=2 WORLD_SIZE=3 MASTER_ADDR=job-master-0 MASTER_PORT=23456",
			Env{Source: "Kubeflow", Rank: 2, Size: 3, LocalSize: 1, NodeRank: 2, Nodes: 3, Addr: "job-master-0:23456", Job: "kubeflow"}},
		{"Kubeflow Trainer", "PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=1 PET_MASTER_ADDR=j-node-0-0.j PET_MASTER_PORT=29400 JOB_COMPLETION_INDEX=1",
			Env{Source: "Kubeflow", Rank: 1, Size: 2, LocalSize: 1, NodeRank: 1, Nodes: 2, Addr: "j-node-0-0.j:29400", Job: "kubeflow"}},
		{"Open MPI, one host", "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2" +
			" OMPI_COMM_WORLD_NODE_RANK=1 PMIX_RANK=1 PMIX_NAMESPACE=1766129665",
			Env{Source: "Open MPI", Rank: 1, Size: 2, LocalRank: 1, LocalSize: 2, Nodes: 1, Addr: "127.0.0.1:27584", Job: "1766129665"}},
		{"Open MPI, two hosts", "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=n",
			Env{Source: "Open MPI", Rank: 3, Size: 4, LocalRank: 1, LocalSize: 2, NodeRank: -1, Job: "n"}},
		{"PMIx", "PMIX_RANK=1 PMIX_NAMESPACE=n WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=9",
			Env{Source: "PMIx", Rank: 1, Size: 2, LocalRank: -1, NodeRank: -1, Addr: "h:9", Job: "n"}},
		{"MPICH", "PMI_RANK=2 PMI_SIZE=4 PMI_FD=6 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2 MASTER_ADDR=h",
			Env{Source: "MPICH", Rank: 2, Size: 4, LocalSize: 2, NodeRank: -1, Addr: "h:29500"}},
		{"MPICH, one host", "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2",
			Env{Source: "MPICH", Size: 2, LocalSize: 2, Nodes: 1}},
		{"MPICH, its daemons started by srun", "PMI_RANK=3 PMI_SIZE=8 SLURM_STEP_ID=1 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=a[1-2]",
			Env{Source: "MPICH", Rank: 3, Size: 8, LocalRank: -1, NodeRank: -1}},
		{"Slurm", "SLURM_JOB_ID=200505 SLURM_STEP_ID=0 SLURM_PROCID=4 SLURM_NTASKS=9 SLURM_STEP_NUM_TASKS=5 SLURM_LOCALID=0 SLURM_NODEID=2" +
			" SLURM_JOB_NODELIST=gnode[08-40] SLURM_STEP_NODELIST=gnode[10,20,25] SLURM_STEP_TASKS_PER_NODE=2(x2),1 SLURM_RESTART_COUNT=1",
			Env{Source: "Slurm", Rank: 4, Size: 5, LocalSize: 1, NodeRank: 2, Nodes: 3, Addr: "gnode10:28080", Job: "slurm-200505.0", Restart: 1}},
		{"Slurm with a port", "SLURM_JOB_ID=7 SLURM_STEP_ID=3 SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_NODEID=0 SLURM_NODELIST=n MASTER_PORT=77",
			Env{Source: "Slurm", Size: 1, LocalRank: -1, Nodes: 1, Addr: "127.0.0.1:77", Job: "slurm-7.3"}},
		{"Slurm, one host", "SLURM_JOB_ID=7 SLURM_STEP_ID=3 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_NODELIST=gnode10 MASTER_PORT=77",
			Env{Source: "Slurm", Rank: 1, Size: 2, LocalRank: -1, NodeRank: -1, Nodes: 1, Addr: "127.0.0.1:77", Job: "slurm-7.3"}},
		{"torchrun --standalone", "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 MASTER_ADDR=laptop.lan MASTER_PORT=4000 TORCHELASTIC_RUN_ID=u",
			Env{Source: "torchrun", Rank: 1, Size: 2, LocalRank: 1, LocalSize: 2, Nodes: 1, Addr: "127.0.0.1:4000", Job: "u"}},
		{"srun --mpi=pmi2", "PMI_RANK=1 PMI_SIZE=2 SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_NODEID=1 SLURM_STEP_NODELIST=a[1-2] MASTER_PORT=1",
			Env{Source: "MPICH", Rank: 1, Size: 2, LocalRank: -1, NodeRank: 1, Nodes: 2, Addr: "a1:1", Job: "slurm-7.0"}},
		{"Kubernetes", "JOB_COMPLETION_INDEX=12 WORLD_SIZE=16 HOSTNAME=train-12 FSDP_SERVICE=svc",
			Env{Source: "Kubernetes", Rank: 12, Size: 16, LocalSize: 1, NodeRank: 12, Nodes: 16, Addr: "train-0.svc:29500", Job: "train"}},
		{"Kubernetes without service", "JOB_COMPLETION_INDEX=0 JOB_COMPLETIONS=2 HOSTNAME=train-0",
			Env{Source: "Kubernetes", Size: 2, LocalSize: 1, Nodes: 2, Job: "train"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ok, err := Parse(environment(c.env))
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, c.want, got)
		})
	}
}

// TestNobody lists environments in which a process is on its own.
func TestNobody(t *testing.T) {
	for _, env := range []string{
		"",
		"MASTER_ADDR=h MASTER_PORT=1 LOCAL_RANK=0",
		"JOB_COMPLETION_INDEX=3 HOSTNAME=sweep-3",                                           // one of many independent tasks
		"SLURM_JOB_ID=1 SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_NODELIST=a[1-4]",            // the script of sbatch
		"SLURM_JOB_ID=1 SLURM_STEP_ID=4294967290 SLURM_PROCID=0 SLURM_NTASKS=8",             // the shell of salloc
		"PMIX_RANK=0 PMIX_NAMESPACE=n",                                                      // srun --mpi=pmix, outside its step
		"FSDP_TIMEOUT=90s FSDP_TRANSPORT=tcp FSDP_LISTEN=eth0 FSDP_SECRET_FILE=/run/secret", // settings make no job
	} {
		e, ok, err := Parse(environment(env))
		require.NoError(t, err, env)
		require.False(t, ok, env)
		require.Zero(t, e.Size)
	}
}

func TestErrorsNameVariables(t *testing.T) {
	for _, c := range []struct{ env, want string }{
		{"RANK=3", "torchrun: RANK=3 is set, but WORLD_SIZE is not"},
		{"WORLD_SIZE=3", "torchrun: WORLD_SIZE=3 is set, but RANK is not"},
		{"RANK=3 WORLD_SIZE=3", "torchrun: rank 3 is not below the number of ranks, 3: ranks are 0 to 2 (RANK=3 WORLD_SIZE=3)"},
		{"RANK=-1 WORLD_SIZE=3", `RANK="-1" is not a number`},
		{"RANK=0 WORLD_SIZE=two", `WORLD_SIZE="two" is not a number`},
		{"RANK=0 WORLD_SIZE=0", "the number of ranks is 0: must be"},
		{"RANK=0 WORLD_SIZE=1048577", "the number of ranks is 1048577: must be"},
		{"RANK=0 WORLD_SIZE=99999999999999999999", "WORLD_SIZE="},
		{"RANK=0 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", "local rank 2"},
		{"RANK=0 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=8", "8 ranks on this host are more than all 4 ranks"},
		{"RANK=0 WORLD_SIZE=4 GROUP_RANK=1 NODE_RANK=0", "GROUP_RANK=1 and NODE_RANK=0 contradict"},
		{"RANK=0 WORLD_SIZE=4 GROUP_RANK=2 GROUP_WORLD_SIZE=2", "host 2"},
		{"RANK=0 WORLD_SIZE=4 GROUP_RANK=2 GROUP_WORLD_SIZE=5", "5 hosts are more than the 4 ranks"},
		{"RANK=0 WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=0", "0 is not a port"},
		{"RANK=0 WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=70000", "70000 is not a port"},
		{"RANK=0 WORLD_SIZE=4 MASTER_ADDR=h:29500", `"h:29500" is not a host name`},
		{"RANK=0 WORLD_SIZE=4 MASTER_ADDR=tcp://h", "is not a host name"},
		{"PET_NNODES=1:3 PET_RDZV_ENDPOINT=h:1", "PET_NNODES=1:3: elastic jobs are not supported"},
		{"PET_NNODES=3", "Kubeflow: PET_NNODES=3 is set, but PET_NODE_RANK is not"},
		{"PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=4 RANK=1 WORLD_SIZE=8", "fsdprun -n 4 -nnodes 2 -node-rank 1"},
		{"PET_NNODES=2 PET_NODE_RANK=1 RANK=0 WORLD_SIZE=2", "RANK=0 and PET_NODE_RANK=1 contradict"},
		{"PET_NNODES=2 PET_NODE_RANK=1 RANK=1 WORLD_SIZE=4", "WORLD_SIZE=4 and PET_NNODES=2 contradict"},
		{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE is not"},
		{"PMI_SIZE=1", "PMI_RANK is not"},
		{"SLURM_STEP_ID=x SLURM_PROCID=0", `SLURM_STEP_ID="x" is not a number`},
		{"SLURM_STEP_ID=0 SLURM_PROCID=0", "SLURM_NTASKS is not"},
		{"SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_NODELIST=a[1", "brackets do not match"},
		{"SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_TASKS_PER_NODE=2(x", "tasks per node"},
		{"FSDP_RENDEZVOUS=tcp://h:1", "no launcher's variables are: set RANK and WORLD_SIZE too"},
		{"RANK=0 WORLD_SIZE=1 FSDP_RENDEZVOUS=h:1", "is not tcp://host:port or file:///dir"},
		{"RANK=0 WORLD_SIZE=1 FSDP_RENDEZVOUS=tcp://h", "is not tcp://host:port"},
		{"RANK=0 WORLD_SIZE=1 FSDP_RENDEZVOUS=tcp://h:0", "is not tcp://host:port"},
		{"RANK=0 WORLD_SIZE=1 FSDP_RENDEZVOUS=file://host/dir", "is not tcp://host:port or file:///dir"},
		{"FSDP_SECRET=short", "FSDP_SECRET: a secret must have at least 16 bytes"},
		{"FSDP_SECRET=0123456789abcdef0123456789abcdef FSDP_SECRET_FILE=/f", "both set"},
		{"FSDP_TLS=yes", `FSDP_TLS="yes" is neither 1 nor 0`},
		{"FSDP_TRUST_NETWORK=lan", `FSDP_TRUST_NETWORK="lan" is neither 1 nor 0`},
		{"FSDP_TIMEOUT=5", `FSDP_TIMEOUT="5" is not a duration such as 90s`},
		{"FSDP_TIMEOUT=-5s", "FSDP_TIMEOUT="},
		{"FSDP_JOIN_TIMEOUT=soon", `FSDP_JOIN_TIMEOUT="soon" is not a duration such as 90s`},
		{"FSDP_WITNESS=host2", `FSDP_WITNESS="host2" is not host:port`},
		{"FSDP_CHECKSUMS=yes", `FSDP_CHECKSUMS="yes" is not auto, off or on`},
		{"FSDP_TRANSPORT=rdma", `FSDP_TRANSPORT="rdma" is not auto, shm or tcp`},
	} {
		e, ok, err := Parse(environment(c.env))
		require.ErrorContains(t, err, c.want, c.env)
		require.False(t, ok)
		require.Zero(t, e)
	}
}

func TestSettings(t *testing.T) {
	const job = "RANK=0 WORLD_SIZE=2 MASTER_ADDR=h "
	e, ok, err := Parse(environment(job + "FSDP_RENDEZVOUS=tcp://[fe80::1]:99 FSDP_SECRET=a-sentence-is-long-enough FSDP_LISTEN=eth0" +
		" FSDP_TIMEOUT=1m30s FSDP_TRANSPORT=shm FSDP_CHECKSUMS=on"))
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "[fe80::1]:99", e.Addr)
	require.Equal(t, []byte("a-sentence-is-long-enough"), e.Secret)
	require.Equal(t, "eth0", e.Listen)
	require.Equal(t, 90*time.Second, e.Timeout)
	require.Equal(t, "shm", e.Transport)
	require.Equal(t, "on", e.Checksums)
	require.False(t, e.TLS || e.TrustNetwork)

	e, _, err = Parse(environment(job + "FSDP_TLS=1 FSDP_TRUST_NETWORK=true FSDP_JOB=mine"))
	require.NoError(t, err)
	require.True(t, e.TLS && e.TrustNetwork)
	require.Equal(t, "mine", e.Job)
	e, _, err = Parse(environment(job + "TORCHELASTIC_RUN_ID=none FSDP_JOB=mine"))
	require.NoError(t, err)
	require.Equal(t, "none/mine", e.Job)

	e, _, err = Parse(environment(job + "FSDP_RENDEZVOUS=file:///shared/job FSDP_SECRET_FILE=/run/key"))
	require.NoError(t, err)
	require.Empty(t, e.Addr)
	require.Equal(t, "/shared/job", e.Dir)
	require.Equal(t, "/run/key", e.SecretFile)
}

func TestParseSecret(t *testing.T) {
	key, err := parseSecret([]byte("000102030405060708090a0b0c0d0e0f\n"))
	require.NoError(t, err)
	require.Equal(t, []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, key)
	_, err = parseSecret([]byte("0001020304050607")) // 16 characters of text, but hex of 8 bytes
	require.Error(t, err)
	_, err = parseSecret([]byte("                                  hush"))
	require.ErrorContains(t, err, "this one has 4")
	require.NotContains(t, err.Error(), "hush") // errors end up in logs
}

func TestNodeList(t *testing.T) {
	for list, want := range map[string]string{
		"":                          "",
		"a":                         "a",
		"node[01-03,7],gpu2":        "node01 node02 node03 node7 gpu2",
		"rack[1-2]n[0-1]":           "rack1n0 rack1n1 rack2n0 rack2n1",
		"n[9-11]-ib.cluster.org,10": "n9-ib.cluster.org n10-ib.cluster.org n11-ib.cluster.org 10",
		"n[099-101]":                "n099 n100 n101",
	} {
		got, err := NodeList(list)
		require.NoError(t, err, list)
		require.Equal(t, want, strings.Join(got, " "))
	}
	for _, list := range []string{",", "a,", ",a", "a,,b", "a[", "a]", "a[[1]]", "a[]", "a[1-]", "a[2-1]", "a[x]", "a[1,]", "a b", "a[1-2",
		"a[0-99999999]", "a[0-999]b[0-999]", "a[4294967296]", strings.Repeat("a[0-9999],", 9) + "a"} {
		_, err := NodeList(list)
		require.Error(t, err, list)
		require.Less(t, len(err.Error()), 300)
	}
}

// TestNodeListRoundTrip writes lists of hosts in Slurm's notation and reads them back.
func TestNodeListRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var items, want []string
		for range rapid.IntRange(1, 4).Draw(t, "items") {
			prefix := rapid.StringMatching(`[a-z]{1,4}-?`).Draw(t, "prefix")
			width := rapid.IntRange(1, 4).Draw(t, "width")
			var ranges []string
			for range rapid.IntRange(0, 3).Draw(t, "ranges") {
				lo := rapid.IntRange(0, 9).Draw(t, "lo")
				hi := lo + rapid.IntRange(0, 20).Draw(t, "more")
				ranges = append(ranges, fmt.Sprintf("%0*d-%d", width, lo, hi))
				for n := lo; n <= hi; n++ {
					want = append(want, fmt.Sprintf("%s%0*d", prefix, width, n))
				}
			}
			if ranges == nil {
				items, want = append(items, prefix), append(want, prefix)
				continue
			}
			items = append(items, prefix+"["+strings.Join(ranges, ",")+"]")
		}
		got, err := NodeList(strings.Join(items, ","))
		if err != nil || strings.Join(got, " ") != strings.Join(want, " ") {
			t.Fatalf("%v: %v, %v, want %v", items, got, err, want)
		}
	})
}

// TestEveryRankAgrees draws a torchrun job and checks that all of its ranks see the same job, each
// once.
func TestEveryRankAgrees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 4).Draw(t, "nodes")
		local := rapid.IntRange(1, 4).Draw(t, "ranks per node")
		addr := "h:29500"
		if nodes == 1 {
			addr = "127.0.0.1:29500"
		}
		seen := make(map[int]bool)
		for rank := range nodes * local {
			e, ok, err := Parse(environment(fmt.Sprintf("RANK=%d WORLD_SIZE=%d LOCAL_RANK=%d LOCAL_WORLD_SIZE=%d GROUP_RANK=%d MASTER_ADDR=h",
				rank, nodes*local, rank%local, local, rank/local)))
			if err != nil || !ok || e.Rank != e.NodeRank*e.LocalSize+e.LocalRank || e.Size != e.Nodes*e.LocalSize || e.Addr != addr {
				t.Fatalf("rank %d: %+v, %v, %v", rank, e, ok, err)
			}
			seen[e.Rank] = true
		}
		if len(seen) != nodes*local {
			t.Fatalf("ranks %v", seen)
		}
	})
}

// names are all variables that a launcher may set.
var names = strings.Fields(`RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK NODE_RANK GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT
	TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_RESTART_COUNT PET_NNODES PET_NODE_RANK PET_NPROC_PER_NODE PMIX_RANK PMIX_NAMESPACE
	OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE PMI_RANK PMI_SIZE MPI_LOCALRANKID
	MPI_LOCALNRANKS SLURM_STEP_ID SLURM_PROCID SLURM_NTASKS SLURM_NODEID SLURM_LOCALID SLURM_STEP_NODELIST SLURM_STEP_TASKS_PER_NODE
	SLURM_JOB_ID JOB_COMPLETION_INDEX JOB_COMPLETIONS HOSTNAME FSDP_SERVICE FSDP_RENDEZVOUS FSDP_SECRET FSDP_TIMEOUT FSDP_TRANSPORT`)

// TestAnyEnvironment draws arbitrary variables: the answer is an error, nothing, or a consistent
// place.
func TestAnyEnvironment(t *testing.T) {
	value := rapid.OneOf(rapid.Map(rapid.IntRange(0, 5), func(n int) string { return fmt.Sprint(n) }),
		rapid.SampledFrom([]string{"", "-1", "True", "a[1-3]", "2(x2)", "h", "1:2", "a-1", "tcp://h:1", "shm"}), rapid.String())
	rapid.Check(t, func(t *rapid.T) {
		env := rapid.MapOf(rapid.SampledFrom(names), value).Draw(t, "environment")
		before := maps.Clone(env)
		e, ok, err := Parse(func(name string) string { return env[name] })
		consistent(t, e, ok, err)
		neverAlone(t, func(name string) string { return env[name] })
		if !maps.Equal(before, env) {
			t.Fatal("changed")
		}
	})
}

// consistent checks what holds for every answer of Parse.
func consistent(t interface{ Fatalf(string, ...any) }, e Env, ok bool, err error) {
	switch {
	case err != nil && ok, ok != (e.Source != ""):
		t.Fatalf("%+v %v %v", e, ok, err)
	case ok && (e.Rank < 0 || e.Rank >= e.Size || e.LocalRank >= max(e.LocalSize, 1) || e.Nodes > 0 && e.NodeRank >= e.Nodes || e.LocalSize > e.Size):
		t.Fatalf("%+v", e)
	case ok && e.Addr != "" && !validAddr(e.Addr):
		t.Fatalf("address %q", e.Addr)
	}
}

func FuzzNodeList(f *testing.F) {
	for _, s := range []string{"node[01-03,7],gpu2", "rack[1-2]n[0-1]", "a,,", "a[1", "[0-65535]", "a[0-999]b[0-999]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		hosts, err := NodeList(list)
		if err != nil {
			require.Empty(t, hosts)
			return
		}
		require.LessOrEqual(t, len(hosts), maxNodes)
		for _, h := range hosts {
			require.NotEmpty(t, h)
			require.False(t, strings.ContainsAny(h, ",[] \n"), h)
		}
		again, err := NodeList(strings.Join(hosts, ","))
		require.NoError(t, err)
		require.Equal(t, hosts, again)
	})
}

func FuzzTaskCounts(f *testing.F) {
	for _, s := range []string{"2(x3),1", "4", "1(x", "1(x99999999999)", "(x2)", "2(x70000)"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		counts, err := taskCounts(list)
		if err != nil {
			require.Empty(t, counts)
		}
		require.LessOrEqual(t, len(counts), maxNodes)
	})
}

func FuzzParse(f *testing.F) {
	f.Add("RANK", "1", "WORLD_SIZE", "2", "MASTER_ADDR", "h", "MASTER_PORT", "1")
	f.Add("SLURM_STEP_ID", "1", "SLURM_PROCID", "2", "SLURM_NTASKS", "3", "SLURM_STEP_NODELIST", "a[1-3]")
	f.Add("PET_NNODES", "2", "PET_NODE_RANK", "1", "FSDP_RENDEZVOUS", "file:///x", "FSDP_SECRET", "0123456789012345")
	f.Add("RANK", "0", "WORLD_SIZE", "1", "OMPI_COMM_WORLD_RANK", "3", "OMPI_COMM_WORLD_SIZE", "8")
	f.Fuzz(func(t *testing.T, n1, v1, n2, v2, n3, v3, n4, v4 string) {
		env := map[string]string{n1: v1, n2: v2, n3: v3, n4: v4}
		get := func(name string) string { return env[name] }
		e, ok, err := Parse(get)
		consistent(t, e, ok, err)
		neverAlone(t, get)
	})
}
