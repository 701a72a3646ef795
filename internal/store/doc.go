// Package store is where the processes of a job meet: a small key-value store in which they publish
// their addresses and look up the addresses of the others.
//
//	server, err := store.Listen(ctx, ":29500", cfg) // on rank 0, or in the launcher
//	s, err := store.Dial(ctx, "host0:29500", cfg)   // on every rank; waits for a late rank 0
//	holder, err := s.Claim(ctx, "rank/3", []byte("10.0.0.7:41234"))
//	addr, err := s.Get(ctx, "rank/0")               // waits for a late rank
//
// [Accept] and [Connect] are the layer below: connections between holders of the secret, for
// another protocol.
//
// [Dir] is the same over a directory that all hosts share, for clusters in which no port can be
// agreed on.
//
// # Invariants
//
//   - Only holders of the secret take part. Connections begin with the handshake of package auth;
//     files carry an HMAC over job, key and value.
//   - Waiting ends. Get returns when the key is set, when its context ends, when the connection is
//     lost or when the store is closed, whichever comes first. A waiting Get does not delay other
//     calls.
//   - Everything is bounded: keys, values, the whole table, waiting Gets, connections that have
//     not proven themselves. Lengths are checked before memory is allocated for them.
//   - Claim is atomic: if several ranks claim a key, all get the same holder.
//
// # On the wire
//
// After the handshake both directions carry frames (big endian):
//
//	| length 4 | id 8 | code 1 | key length 2 | key | value |      length counts what follows it
//
// The client numbers its requests and may have many in progress; replies come in any order. A Get
// that cannot be answered yet stays with the server until the key is set or the client cancels it.
package store
