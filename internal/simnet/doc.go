// Package simnet is a network in memory, on which thousands of ranks of one process talk with the
// code of every job: in a bubble of testing/synctest a second of it takes no time.
//
//	n := simnet.New(simnet.Config{Seed: 7, Latency: 100 * time.Microsecond, Bandwidth: 10e9})
//	ctx = store.WithNetwork(ctx, n.Host("10.0.0.3")) // then comm.Connect, store.Listen, mesh.Join, …
//	n.Host("10.0.0.3").Kill()
//
// # The model
//
// A connection is a stream each way. What is written arrives after it has been sent at the bandwidth
// of the connection, and a latency with jitter; never before what was written earlier. At most
// [Window] bytes are on the way, or have come and are not read: then Write waits. A dial takes a round
// trip. Connections do not share bandwidth.
//
//	Kill     a process ends: its kernel ends its connections, and refuses new ones
//	Stall    a process is stopped: its kernel answers, but nothing is read or said
//	Isolate  a host is cut off: nothing comes through, and what was sent comes later, if ever
//	Cut      the connections of two hosts that are open now are reset
//	Delay    what two hosts send each other takes longer
//	Flip     the next bytes from one host to another have one wrong bit
//
// A connection that has been told so, see [Conn.Unanswered], ends with ETIMEDOUT when the other host
// has been cut off for that long, as the system's keepalive does it; others wait.
//
// # What a seed decides
//
// Every delay is a hash of the seed, the two hosts, the number of the connection between them, its
// direction and the number of the write. So it does not matter which goroutine the scheduler of Go
// happens to run first: no two arrivals share an instant, but by chance, and between two instants a
// bubble comes to rest. What is left to chance are goroutines that one arrival wakes at the same time.
package simnet
