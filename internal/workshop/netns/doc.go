// Package netns tests process groups, and fsdprun, on several hosts of one machine: network
// namespaces, each with an interface, an address and a loopback of its own,
// joined by a switch.
//
//	 host 0            host 1            host 2        namespaces
//	rank 0, 1         rank 2, 3         rank 4, 5      processes of the test program
//	  eth0              eth0              eth0         10.77.0.1, .2, .3, MTU 1500
//	   |                 |                 |
//	 port0 ----------- port1 ----------- port2         bridge in a namespace of its own
//
// There is nothing but tests here, behind a build tag, for they need root and
// the commands ip, tc and mpirun:
//
//	make netns
//
// The files of examples/cluster for Open MPI train here. Its files for Slurm are
// run by slurm.sh, with Slurm's own daemons on two such hosts:
//
//	make slurm
package netns
