// Package launch finds out which rank of which job a process is, from the
// environment variables that its launcher has set.
//
// Every launcher sets the same few values under different names. [Parse] tries
// them in this order; the first launcher with both rank and size wins:
//
//	launcher                   rank                   size                   where rank 0 is
//	Kubeflow                   PET_NODE_RANK          PET_NNODES             PET_MASTER_* or MASTER_*
//	torchrun, fsdprun, by hand RANK                   WORLD_SIZE             MASTER_ADDR, MASTER_PORT
//	Open MPI                   OMPI_COMM_WORLD_RANK   OMPI_COMM_WORLD_SIZE   loopback, if on one host
//	PMIx                       PMIX_RANK              WORLD_SIZE             -
//	MPICH, Intel MPI (Hydra)   PMI_RANK               PMI_SIZE               -
//	Slurm (srun)               SLURM_PROCID           SLURM_STEP_NUM_TASKS   first host of the step
//	Kubernetes Indexed Job     JOB_COMPLETION_INDEX   WORLD_SIZE             pod 0 of FSDP_SERVICE
//
// The place on the host is LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_RANK, MPI_LOCALRANKID or
// SLURM_LOCALID, and 0 in a pod of Kubernetes, which is one rank.
//
// If the launcher says that all ranks are on one host, rank 0 is on loopback.
// MASTER_ADDR and MASTER_PORT override the last column for all of them, and
// FSDP_RENDEZVOUS overrides those. The functions in launchers.go document the
// details of each launcher and their sources.
//
// A process that was started by itself finds nothing, which is no error. An
// incomplete or invalid set is an error: RANK without WORLD_SIZE, values that are
// not numbers, a rank beyond the size. Without the error, a rank that believes to
// be alone would silently train a separate model. The error names the variables
// and their values.
//
// Variables of several launchers are compared, see contradiction.go. They may
// differ if one launcher has started the other, such as torchrun below srun.
// Otherwise one set is left over from another job, and the [ContradictionError]
// says which variables to unset.
//
// # Settings of this library
//
// In addition, under any launcher and none:
//
//	FSDP_RENDEZVOUS   where ranks meet: tcp://host:port, served by rank 0, or a shared file:///dir
//	FSDP_SECRET       the key that ranks share: 16 bytes at least, in hex or as text
//	FSDP_SECRET_FILE  a file that holds it
//	FSDP_JOB          a name of the job, in addition to the launcher's
//	FSDP_TLS          1 to encrypt connections
//	FSDP_TRUST_NETWORK 1 to need no secret between hosts
//	FSDP_LISTEN       the network interfaces or addresses on which ranks listen
//	FSDP_TIMEOUT      for how long an operation may make no progress: a duration such as 90s
//	FSDP_JOIN_TIMEOUT for how long a rank waits for the others to join
//	FSDP_JOIN         1 for a process that joins a running job
//	FSDP_MEMBERS      directory in which ranks record their addresses for processes that join
//	FSDP_REPLACE      for how long ranks wait for processes that replace lost ones
//	FSDP_WITNESS      host:port of a process that votes if half of the ranks are lost
//	FSDP_TRANSPORT    auto, shm or tcp
//	FSDP_CHECKSUMS    auto, off or on: which data between ranks has checksums
//	FSDP_ALLOW_OLDER  true or false: the value of fsdp's option AllowOlder, read by Load
//	FSDP_TRACE        a directory for traces of the ranks: fsdp.TraceDir
//	FSDP_HASHES       a directory for hashes of the ranks' results: fsdp.HashDir
//	FSDP_STRAGGLERS   a directory for the ranks' total times: fsdp.Profile
//	FSDP_JOINS        from fsdprun: files that say how far a rank is in joining the others
//	FSDP_SERVICE      the headless service of a Kubernetes job
//
// The package reads variables through the function that it is given. Its only
// state is the number of ranks that this process runs as goroutines, see
// [Goroutines].
package launch
