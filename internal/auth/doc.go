// Package auth decides who may talk: the two ends of a connection prove to each other that they
// hold the same secret, and say who they are, before anything else is said.
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
// and serves nothing else. Inside TLS the HMAC also covers a value exported from the session (RFC
// 5705), so that a proof cannot be carried from one TLS connection to another: somebody in the
// middle, who has a session with each side, has a proof for neither. The TLS handshake itself is
// made from nothing but fresh randomness.
//
// # Invariants
//
//   - Nothing is believed before it is proven. Hellos travel in the clear, for they hold no secret,
//     but the one who receives a hello does not look into it before its HMAC has been verified, in
//     constant time.
//   - A proof is good once, in one direction: each end adds a fresh nonce of 32 bytes (no replay),
//     and the kind of message is part of what is proven (no reflection).
//   - The client proves first. A stranger who connects learns nothing computed from the secret that
//     he could try guesses on. Who is dialed in place of a rank, or without TLS listens on the
//     network, does: he has one proof, and may try guesses on it at home. A random secret stands
//     that for ever ([Check] wants 128 bits), a password does not ([Guessable]).
//   - Both ends learn what went wrong: [ErrSecret], [ErrVersion] and [RefusedError] come out on
//     both sides, as whoever notices tells the other before it hangs up. The exception is
//     [ErrStranger]: a stranger is told nothing.
//   - Everything is bounded: a message by a fixed buffer that its length is checked against, the
//     whole by a deadline.
//
// The challenge keeps strangers out; it does not hide or protect what is said afterwards. [TLS]
// does.
package auth
