// Package store is where the processes of a job meet: a small key-value store in which they publish
// their addresses and look up those of the others.
//
//	server, err := store.Listen(ctx, ":29500", cfg) // on rank 0, or in the launcher
//	s, err := store.Dial(ctx, "host0:29500", cfg)   // on every rank; waits for a late rank 0
//	holder, err := s.Claim(ctx, "rank/3", []byte("10.0.0.7:41234"))
//	addr, err := s.Get(ctx, "rank/0")               // waits for a late rank
//
// [Accept] and [Connect] are what lies below: connections of those who hold the secret, for a protocol
// of their own.
//
// [Dir] is the same over a directory that all hosts share, for clusters where no port can be agreed
// on.
//
// # Invariants
//
//   - Only holders of the secret take part. Connections begin with the handshake of package auth;
//     files carry an HMAC over job, key and value.
//   - Waiting ends. Get returns when the key is set, when its context ends, when the connection is
//     lost or when the store is closed, whichever comes first. One that waits keeps nobody else
//     waiting.
//   - Everything is bounded: keys, values, the whole table, Gets that wait, connections that have
//     not proven themselves. Lengths are checked before anything is allocated for them.
//   - Claim is atomic: of any number of ranks that claim a key, all are told the same holder.
//
// # On the wire
//
// After the handshake both directions carry frames (big endian):
//
//	| length 4 | id 8 | code 1 | key length 2 | key | value |      length counts what follows it
//
// The client numbers its requests and may have many under way; replies come in any order. A Get
// that cannot be answered yet stays with the server until the key is set or the client cancels it.
package store
