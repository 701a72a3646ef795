// Package simnet is a network in memory, on which thousands of ranks of one process communicate
// with the production code. In a bubble of testing/synctest, a second on the network takes no time.
//
//	n := simnet.New(simnet.Config{Seed: 7, Latency: 100 * time.Microsecond, Bandwidth: 10e9})
//	ctx = store.WithNetwork(ctx, n.Host("10.0.0.3")) // then comm.Connect, store.Listen, mesh.Join, …
//	n.Host("10.0.0.3").Kill()
//
// # The model
//
// A connection is one stream in each direction. Data is sent at the bandwidth of the connection and
// arrives after a latency with jitter, always in order. At most [Window] bytes are in transit or
// unread: then Write waits. A dial takes a round trip. Connections do not share bandwidth.
//
//	Kill     a process ends: its kernel ends its connections, and refuses new ones
//	Stall    a process is stopped: its kernel answers, but nothing is read or sent
//	Isolate  a host is cut off: nothing passes, and data that was sent arrives later, if ever
//	Part     the same between some hosts and the rest
//	Cut      the open connections of two hosts are reset
//	Delay    data between two hosts takes longer
//	Flip     the next bytes from one host to another have one wrong bit
//
// A connection with a limit set by [Conn.Unanswered] fails with ETIMEDOUT when the other host has
// been cut off for that long, like the system's keepalive. Other connections wait.
//
// # Seeds
//
// Every delay is a hash of the seed, the two hosts, the number of the connection between them, its
// direction and the number of the write. So the result does not depend on which goroutine Go's
// scheduler runs first: two arrivals almost never happen at the same instant, and between two
// instants a bubble comes to rest. Only the order of goroutines that one arrival wakes at the same
// time is left to chance.
package simnet
