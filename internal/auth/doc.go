// Package auth authenticates connections: the two ends prove to each other that they hold the same
// secret, and exchange their identities, before any other data.
//
//	mine := auth.Hello{Job: "gpt", Purpose: "store", Rank: 3, Size: 8}
//	theirs, err := auth.Client(conn, secret, mine, deadline)
//
//	theirs, err := auth.Server(conn, secret, func(theirs auth.Hello) (auth.Hello, error) {
//		if theirs.Size != size {
//			return auth.Hello{}, fmt.Errorf("this job has %d ranks, not %d", size, theirs.Size)
//		}
//		return mine, nil
//	}, deadline)
//
// # Protocol
//
// Four messages, two round trips:
//
//	client                                                            server
//	  | -- magic version nonceC ------------------------------------->  |  40 bytes, of every version
//	  | <------------------------------------- magic version nonceS --  |  if it knew the magic
//	  | -- 'H' len helloC HMAC(key, 'H' nonceC nonceS helloC) --------> |  verified, read, accepted
//	  | <-- 'A' len helloS HMAC(key, 'A' nonceC nonceS helloC helloS) - |  accepted
//	  |     'R' len reason HMAC(key, 'R' nonceC nonceS helloC reason)   |  or refused, and why
//	  |     'S' 0          (no proof)                                   |  or: your proof is wrong
//
// Every part under the HMAC-SHA256 is preceded by its length. The key is derived from the secret
// and has no other use. Inside TLS the HMAC also covers a value exported from the session (RFC
// 5705), so a proof cannot be carried from one TLS connection to another: an attacker in the
// middle has a session with each side, but a proof for neither. The TLS handshake itself is
// made only from fresh randomness.
//
// # Invariants
//
//   - Nothing is trusted before it is proven. Hellos travel in the clear, because they hold no
//     secret, but the receiver of a hello does not parse it before its HMAC has been verified, in
//     constant time.
//   - A proof is good once, in one direction: each end adds a fresh nonce of 32 bytes (no replay),
//     and the proof covers the kind of message (no reflection).
//   - The client proves first. An unrelated process that connects gets nothing computed from the
//     secret that it could try guesses on. A process that is dialed in place of a rank, or without
//     TLS listens on the network, does: it has one proof, and may try guesses on it offline. A
//     random secret withstands that ([Check] wants 128 bits), a password does not ([Guessable]).
//   - Both ends learn the error: both sides return [ErrSecret], [ErrVersion] and [RefusedError],
//     because the side that notices reports it before it closes the connection. The exception is
//     [ErrStranger]: an unrelated process gets no report.
//   - Everything is bounded: a message by a fixed buffer that its length is checked against, the
//     whole by a deadline.
//
// The challenge keeps unrelated processes out. It does not hide or protect later data; [TLS] does.
package auth
