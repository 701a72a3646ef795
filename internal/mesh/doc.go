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
// inside a host, TCP between hosts. It carries short messages in order, and its end reports the end
// of a process: the kernel closes the connections of a dead process. If there are more ranks, each
// has control connections to about 2 log2 N others, which pass on messages for the rest (see "Many
// ranks" in overlay.go). Bulk data takes separate TCP connections, as many as the caller asks for.
// The mesh sets them up and then does not use them.
//
// # Joining
//
// The ranks meet in a store. All other messages travel over connections that [auth] has checked.
//
//	rank r                               store, under mesh/JOB/                rank q < r
//	  | -- claim size, rank-r: address ->  size    rank-q    rank-r  <- claim --  |
//	  | <- get rank-q -------------------                                         |
//	  | ===== dial, prove, say who I am ========================================> |  5 s; q checks it
//	  | <==== ready: "I am connected to all" ===== both ways ===================> |
//
// Join returns when every rank has said that it is ready, that is, when all pairs are connected. It
// does not use the store after that. If there are more than 16 ranks, each asks the store only for
// the ranks that it dials. As soon as it has its connections, it sends its record to rank 0, along
// a tree. The list of all ranks comes back the same way, and with it every rank has joined: the
// store answers N log2 N requests, and holds N records. A rank that cannot join reports it to the
// ranks it has met and in the store under "abort", which all others watch: one wrong world size
// ends Join everywhere, at once and with the reason.
//
// # Invariants
//
//   - Unrelated processes cost little: a few connections are checked at a time, concurrently, for
//     at most 5 seconds each, and silent ones give way to others (auth.Places). A Unix socket of
//     another user is closed at once. They are logged and never fail or delay a rank.
//   - A rank that has joined is not disturbed by another that claims the same rank.
//   - For every rank the Handler gets its messages in order, then Gone or Lost, once, then
//     nothing.
//   - Send does not block: a rank that leaves a mebibyte unread is lost (32, of many ranks).
//   - If any of many ranks die, all remaining ranks learn of each, and how it was noticed, as long
//     as the remaining ranks are connected with each other.
//   - Close returns within a second or so, whatever the others do, and leaves neither a goroutine
//     nor an open file.
package mesh
