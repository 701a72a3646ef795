// Package cluster has the files that start a training on a cluster. They are there to be copied:
//
//	slurm.sbatch     Slurm
//	mpi.sh           Open MPI
//	torchrun.sh      torchrun; fsdp/fsdprun does the same without Python
//	job.yaml         Kubernetes: an indexed Job
//	pytorchjob.yaml  Kubernetes with Kubeflow's training operator: a PyTorchJob
//	Dockerfile       the image for both
//
// Each trains examples/gpt on one host or several, writes checkpoints into a directory that all
// hosts see, saves when it is asked to end, and continues from there when it is started again.
//
// # The variables of a rank
//
// comm.FromEnv and comm.Run find it in the environment that the launcher makes. LOCAL_RANK stands
// for comm.Config.LocalRank, the place on the host, by which a rank chooses its GPU.
//
//	launcher     rank and size         LOCAL_RANK                  where rank 0 is
//	srun         SLURM_PROCID, …       SLURM_LOCALID               first node; port by job and step
//	mpirun       OMPI_COMM_WORLD_*     OMPI_COMM_WORLD_LOCAL_RANK  MASTER_ADDR: see mpi.sh
//	torchrun     RANK, WORLD_SIZE      LOCAL_RANK                  MASTER_ADDR, MASTER_PORT
//	indexed Job  JOB_COMPLETION_INDEX  0: a pod is a rank          pod 0 of the headless service
//	PyTorchJob   RANK, WORLD_SIZE      0: a pod is a rank          MASTER_ADDR: the master's service
//
// These files set the variables that no launcher sets:
//
//	FSDP_SECRET  by which ranks of several hosts know each other: random for each start, or a Secret
//	FSDP_LISTEN  the network interface between hosts, or the address of the pod
//
// # What happens when it ends early
//
// A rank that gets SIGTERM tells the others, and all save after the step under way. What then
// starts them again depends on the cluster:
//
//	scancel                       they save; scontrol requeue goes on
//	scontrol requeue, preemption  they save within KillWait (30 s) or GraceTime; Slurm goes on
//	Slurm: the time is up         they save 2 minutes before; the script requeues the job
//	kubectl delete job            they save; kubectl apply goes on
//	kubectl patch: suspend        they save; they go on when suspend is false again
//	kubectl drain, spot machines  they save within terminationGracePeriodSeconds; pods are made anew
//	SIGTERM to mpirun             they save; the same command goes on
//	SIGTERM to every torchrun     they save; the same command goes on
//	a rank or a host dies         the others end at once with an error; Kubernetes and torchrun go on
//	                              from the last checkpoint, Slurm if a node is lost
//
// Exit status 0 would be the end of the job to Kubernetes: flag -interrupted makes it 143, which
// PyTorchJob and the failure policy of job.yaml take for a reason to start again.
//
// # How these files are tested
//
// The package's tests check that the scripts are sound, and that the flags and variables in them
// exist. "make slurm" runs slurm.sbatch under Debian's Slurm on two hosts that are network
// namespaces:
//
//	$ sbatch --parsable --ntasks-per-node=2 … slurm.sbatch -data text -size tiny -steps 400 …
//	$ scancel 2
//	$ scontrol requeue 2
//	$ scontrol requeue 2
//	$ scancel --signal=TERM 2
//	interrupted after step 5
//	step 5  saved 000001-step-5: 411 kB/rank; …
//	resumed after step 5 from ckpt-2/000001-step-5,
//	interrupted after step 13
//	…
//	step 400  saved 000011-step-400: 411 kB/rank; …
//	its weights equal the weights of the run without a break
//
// "make netns" runs mpi.sh on such hosts, and "make kube-check" gives the manifests to the checks
// of Kubernetes' API server and of Kubeflow's operator, and the variables that it makes to comm.
package cluster
