// Package mesh connects the processes of a job, one per rank, with each other.
//
//	m, err := mesh.Join(ctx, mesh.Config{
//		Rank: 1, Size: 4, Store: s, Job: "gpt/1", Secret: secret, Handler: h,
//	})
//	defer m.Close()
//	m.Send(3, msg)                    // h.Message(1, msg) is called on rank 3
//	conn, err := m.Connect(ctx, 3, 7) // rank 3 does m.Connect(ctx, 1, 7)
//
// Every pair of up to 16 ranks has a control connection for as long as both live: a Unix socket
// inside a host, TCP between hosts. It carries short messages in order, and it is how the end of a
// process is noticed: the kernel closes what a dead process had open. Of more ranks each has
// control connections to some 2 log2 N others, which pass on what is for the rest (see "Many
// ranks" in overlay.go). Bulk data takes TCP connections of its own, as many as the caller asks
// for, which the mesh sets up and then knows no more about.
//
// # Joining
//
// The ranks meet in a store. Everything else is said over connections that [auth] has checked.
//
//	rank r                               store, under mesh/JOB/                rank q < r
//	  | -- claim size, rank-r: address ->  size    rank-q    rank-r  <- claim --  |
//	  | <- get rank-q -------------------                                         |
//	  | ===== dial, prove, say who I am ========================================> |  5 s; q checks it
//	  | <==== ready: "I am connected to all" ===== both ways ===================> |
//
// Join returns when every rank has said that it is ready, that is, when all pairs are connected;
// nothing is asked of the store after that. Of more than 16 ranks each asks the store for those
// alone that it dials, and tells rank 0, along a tree, who and where it is as soon as it has its
// connections. The list of all comes back the same way, and with it everybody has joined: the
// store answers N log2 N requests, and holds N records. Whoever cannot join says so, to the ranks
// it has met and in the store under "abort", which all others watch: one wrong world size ends
// Join everywhere, at once and with the reason.
//
// # Invariants
//
//   - Strangers cost little: a few connections are being checked at a time, beside each other, for
//     at most 5 seconds each, and silent ones give way to others (auth.Places). A Unix socket of
//     another user is closed at once. They are logged and never fail or delay a rank.
//   - A rank that has joined is not disturbed by another that claims the same rank.
//   - For every rank the Handler hears its messages in order, then Gone or Lost, once, then
//     nothing.
//   - Send does not block: a rank that leaves a mebibyte unread is lost (32, of many ranks).
//   - Whichever of many ranks die, all that are left hear of each, and how it was noticed, as long
//     as those that are left are connected with each other.
//   - Close returns within a second or so, whatever the others do, and leaves neither a goroutine
//     nor an open file.
package mesh
