package launch

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
)

// launchers are tried in this order. A launcher that starts others comes after them:
// srun may start mpiexec's daemons, a Kubernetes job may run torchrun.
var launchers = []struct {
	name string
	read func(*vars) (*Env, error) // returns nil if the launcher has set no variables
}{
	{"Kubeflow", kubeflow}, // sets RANK of a host, so it goes before torchrun, which it starts
	{"torchrun", torchrun},
	{"Open MPI", openMPI},
	{"PMIx", pmix},
	{"MPICH", mpich},
	{"Slurm", slurm},
	{"Kubernetes", kubernetes},
}

// torchrun reads the variables that torchrun sets for every process
// (https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables).
// fsdprun sets the same ones, and people set them by hand. By hand, RANK,
// WORLD_SIZE, MASTER_ADDR and MASTER_PORT are enough.
//
// If TORCHELASTIC_USE_AGENT_STORE is True, torchrun's own store listens on
// MASTER_PORT already, and ranks are only its clients
// (torch/distributed/rendezvous.py); ours meet on the next port.
func torchrun(v *vars) (*Env, error) {
	e, err := v.world("RANK", "WORLD_SIZE")
	if e == nil {
		return nil, err
	}
	v.local(e, v.int(-1, "LOCAL_RANK"), v.int(0, "LOCAL_WORLD_SIZE"))
	group, node := v.int(-1, "GROUP_RANK"), v.int(-1, "NODE_RANK")
	if group >= 0 && node >= 0 && group != node {
		return nil, fmt.Errorf("GROUP_RANK=%d and NODE_RANK=%d contradict each other: unset the wrong one", group, node)
	}
	e.NodeRank, e.Nodes = max(group, node), v.int(0, "GROUP_WORLD_SIZE")
	if e.Nodes == 0 && e.LocalSize > 0 && e.Size%e.LocalSize == 0 {
		e.Nodes = e.Size / e.LocalSize
	}
	e.Job = v.text("TORCHELASTIC_RUN_ID")
	e.Restart = v.int(0, "TORCHELASTIC_RESTART_COUNT")
	e.Addr = v.address("", 0)
	if v.text("TORCHELASTIC_USE_AGENT_STORE") == "True" && e.Addr != "" {
		e.Addr = nextPort(e.Addr)
	}
	return e, nil
}

// kubeflow reads the variables that Kubeflow sets for every pod: the arguments of
// the torchrun that it expects there, as variables with the prefix PET_. Its Trainer
// sets only those; the older PyTorchJob also sets WORLD_SIZE and, as RANK, the rank
// of the pod, not of a process
// (https://github.com/kubeflow/training-operator/blob/v1.9.0/pkg/controller.v1/pytorch/envvar.go,
// https://github.com/kubeflow/trainer/blob/v2.0.0/pkg/runtime/framework/plugins/torch/torch.go).
// A program that is the pod's own command is one rank of one pod each. Below
// torchrun, which passes the variables on, LOCAL_RANK is set: then torchrun's
// variables count.
func kubeflow(v *vars) (*Env, error) {
	if v.get("LOCAL_RANK") != "" {
		return nil, nil
	}
	nodes, node := v.text("PET_NNODES"), v.int(0, "PET_NODE_RANK")
	if strings.Contains(nodes, ":") {
		return nil, fmt.Errorf("PET_NNODES=%s: elastic jobs are not supported, set a fixed number of nodes", nodes)
	}
	e, err := v.world("PET_NODE_RANK", "PET_NNODES")
	if e == nil {
		return nil, err
	}
	each := v.text("PET_NPROC_PER_NODE")
	if n, err := strconv.Atoi(each); err == nil && n != 1 { // "auto", "cpu" and "gpu" leave it to the program
		return nil, fmt.Errorf("PET_NPROC_PER_NODE=%s: start several ranks of a pod with a launcher: "+
			"fsdprun -n %s -nnodes %s -node-rank %d -rdzv host:port program", each, each, nodes, node)
	}
	if rank := v.int(node, "RANK"); rank != node {
		return nil, fmt.Errorf("RANK=%d and PET_NODE_RANK=%d contradict each other: unset the wrong one", rank, node)
	}
	if size := v.int(e.Size, "WORLD_SIZE"); size != e.Size {
		return nil, fmt.Errorf("WORLD_SIZE=%d and PET_NNODES=%s contradict each other: unset the wrong one", size, nodes)
	}
	e.LocalRank, e.LocalSize = 0, 1
	e.NodeRank, e.Nodes = e.Rank, e.Size
	e.Job = cmp.Or(v.text("PET_RDZV_ID"), "kubeflow") // its address belongs to the job
	e.Addr = v.address("", 0)
	return e, nil
}

// openMPI reads the variables that Open MPI's mpirun sets
// (https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html), and the
// name of the job of its PMIx. It does not set the host of rank 0: unless all ranks
// are on this host, pass MASTER_ADDR on with mpirun -x.
func openMPI(v *vars) (*Env, error) {
	e, err := v.world("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
	if e == nil {
		return nil, err
	}
	v.local(e, v.int(-1, "OMPI_COMM_WORLD_LOCAL_RANK"), v.int(0, "OMPI_COMM_WORLD_LOCAL_SIZE"))
	e.Job = v.text("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
	e.Addr = v.oneHost(e)
	return e, nil
}

// pmix reads the rank that any PMIx server sets (https://docs.openpmix.org). Only
// the server has the size, so the user must set it. Below srun --mpi=pmix, Slurm's
// own variables have more.
func pmix(v *vars) (*Env, error) {
	if v.get("WORLD_SIZE") == "" || v.get("PMIX_RANK") == "" {
		return nil, nil
	}
	e, err := v.world("PMIX_RANK", "WORLD_SIZE")
	if e == nil {
		return nil, err
	}
	e.Job = v.text("PMIX_NAMESPACE")
	e.Addr = v.address("", 0)
	return e, nil
}

// mpich reads the variables that the process managers of MPICH and Intel MPI set:
// PMI_RANK and PMI_SIZE of the PMI-1 wire protocol, Hydra's MPI_LOCALRANKID and
// MPI_LOCALNRANKS (mpich src/pm/hydra/proxy), Cray's PMI_LOCAL_RANK and
// PMI_LOCAL_SIZE. They set neither job nor host: pass MASTER_ADDR and MASTER_PORT on
// with mpiexec -genv. Below srun --mpi=pmi2 they agree with Slurm's variables, which
// have more.
func mpich(v *vars) (*Env, error) {
	e, err := v.world("PMI_RANK", "PMI_SIZE")
	if e == nil {
		return nil, err
	}
	pair := v.pair
	if s, err := slurm(v); s != nil && err == nil && s.Rank == e.Rank && s.Size == e.Size {
		return s, nil
	}
	v.pair = pair
	v.local(e, v.int(-1, "MPI_LOCALRANKID", "PMI_LOCAL_RANK"), v.int(0, "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"))
	e.Addr = v.oneHost(e)
	return e, nil
}

// kubernetes reads the index that an Indexed Job gives to each of its pods
// (https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode).
// Kubernetes does not set the number of pods: the manifest sets WORLD_SIZE, or
// JOB_COMPLETIONS. Without one of these the pods count as independent tasks, as in
// most indexed jobs.
//
// Pods have the host name job-index and find each other through a headless service
// (https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/). The
// manifest sets its name as FSDP_SERVICE: rank 0 is job-0.service.
func kubernetes(v *vars) (*Env, error) {
	size := "WORLD_SIZE"
	if v.get(size) == "" {
		size = "JOB_COMPLETIONS"
	}
	if v.get("JOB_COMPLETION_INDEX") == "" || v.get(size) == "" {
		return nil, nil
	}
	e, err := v.world("JOB_COMPLETION_INDEX", size)
	if e == nil {
		return nil, err
	}
	e.LocalRank, e.LocalSize = 0, 1
	e.NodeRank, e.Nodes = e.Rank, e.Size
	host, service := "", v.text("FSDP_SERVICE")
	if job, ok := strings.CutSuffix(v.text("HOSTNAME"), fmt.Sprintf("-%d", e.Rank)); ok {
		e.Job = job
		if service != "" {
			host = job + "-0." + service
		}
	}
	e.Addr = v.address(host, DefaultPort)
	return e, nil
}

// oneHost returns the address of a job whose ranks are all on this host: loopback,
// on a port that follows from the name of the job.
func (v *vars) oneHost(e *Env) string {
	if e.LocalSize != e.Size {
		return v.address("", 0)
	}
	e.NodeRank, e.Nodes = 0, 1
	if e.Job == "" {
		return v.address("", 0)
	}
	h := fnv.New32a()
	h.Write([]byte(e.Job))
	return v.address("127.0.0.1", jobPort(h.Sum32()))
}

// slurm reads the variables that srun sets for every task
// (https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES). The
// script of sbatch and the shell of salloc also have SLURM_PROCID=0 and
// SLURM_NTASKS, but are not ranks. Only a step has a SLURM_STEP_ID, apart from the
// reserved ones of the steps that hold script and shell (slurm.h: from 0xfffffff0
// up).
//
// Rank 0 is on the first host of the step, as with the default distribution. The
// port follows from job and step: two steps at once do not collide.
func slurm(v *vars) (*Env, error) {
	step, number, err := slurmStep(v)
	if step == "" || err != nil {
		return nil, err
	}
	e, err := v.world("SLURM_PROCID", slurmSize(v))
	if e == nil {
		return nil, err
	}
	e.NodeRank = v.int(-1, "SLURM_NODEID")
	hosts, err := NodeList(v.text("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"))
	if err != nil {
		return nil, err
	}
	tasks, err := taskCounts(v.text("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
	if err != nil {
		return nil, err
	}
	if len(tasks) == len(hosts) && e.NodeRank >= 0 && e.NodeRank < len(tasks) {
		v.local(e, v.int(-1, "SLURM_LOCALID"), tasks[e.NodeRank])
	}
	e.Nodes = len(hosts)
	host := ""
	if len(hosts) > 0 {
		host = hosts[0]
	}
	job := v.int(0, "SLURM_JOB_ID", "SLURM_JOBID")
	e.Job = "slurm-" + strconv.Itoa(job) + "." + step
	e.Restart = v.int(0, "SLURM_RESTART_COUNT")
	e.Addr = v.address(host, jobPort(uint32(job)*16+uint32(number)))
	return e, nil
}

// slurmStep returns the step of srun that this process belongs to, or "" if it is in
// none, and its number.
func slurmStep(v *vars) (step string, number uint64, err error) {
	step = v.text("SLURM_STEP_ID", "SLURM_STEPID")
	if step == "" {
		return "", 0, nil
	}
	if number, err = strconv.ParseUint(step, 10, 32); err != nil {
		return "", 0, fmt.Errorf("SLURM_STEP_ID=%q is not a number", step)
	}
	if number >= 0xfffffff0 {
		step = ""
	}
	return step, number, nil
}

// slurmSize returns the variable that has the number of tasks of a step.
func slurmSize(v *vars) string {
	if v.get("SLURM_STEP_NUM_TASKS") != "" {
		return "SLURM_STEP_NUM_TASKS"
	}
	return "SLURM_NTASKS"
}
