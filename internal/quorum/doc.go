// Package quorum lets the ranks of a job agree on the ranks of its next group.
//
//	n, err := quorum.Open(ctx, config) // each process, before the first group
//	n.Begin(quorum.Membership{Members: members}) // the first membership, number 0
//	m, err := n.Next(ctx, 1) // after a loss: the ranks of the next group
//
// A membership is a list of processes. Memberships have numbers: 0 is the membership of the first
// group. The members of membership k-1 agree on membership k with single-decree Paxos (L. Lamport,
// Paxos Made Simple, 2001): every member is an acceptor, and the first member that lives proposes.
//
// # Messages
//
// Each process has an address, at which it answers as long as it is part of the job, whether it
// waits in Next or not. A connection has one request, with the number k of a membership and the
// number of the latest membership of the sender, and one answer. A process that has not answered
// sends an empty answer every 5 s, and when the processes that wait to join change. The other end
// treats a process that is silent for 20 s as lost.
//
//	await    k       answered when the process waits for k in Next
//	follow   k       answered when the process has k; all answers, also empty ones, name
//	                 the processes that wait to join
//	prepare  k b     promise: no ballot below b; with the value that the process has accepted
//	accept   k b v   accepts the value v in ballot b, unless it has promised a higher one
//	meet     k       answered with the address of the store in which the ranks of k meet
//	guard    k       answered when the process does not form k any more
//	enter            answered when the process that asks is in a membership
//	witness          answered with the ID of the witness
//
// A process that has membership k or a later one answers every request about k with it. A process
// whose latest membership is earlier than the sender's answers "unknown", and the sender repeats
// the request on the same connection, with that membership. So the first request brings a process
// up to date that was cut off, and the proposer need not send its decision: the others follow it.
// Four messages have all members of a membership: accept, the repeated request, a promise with an
// accepted value, and the answer of a process with membership k. Messages are binary, see
// message.go: a membership of 1,000 processes has about 40 KB.
//
// # States
//
//	            Next(k)                  k is known, and has this process
//	idle ───────────────────▶ waiting ───────────────────────────────▶ forming ──▶ idle, with a group
//	                           │    ▲                                     │
//	                           │    └── Next(k+1): the group has not formed ──┘
//	                           ▼
//	                        left: k does not have this process, there is no majority, or time is up
//
// A waiting process follows the first member before it that lives. If there is none, it proposes:
// it awaits all other members, until each waits, or is lost. A member that lives and does not wait
// is lost after half of Config.Limit. Membership k is then the waiting processes, in their old
// order.
//
// # Majority
//
// A set of members can decide if it has more than half of them, or half of them and the first
// member, or if all others are certainly dead. A process on this host's loopback interface is
// certainly dead if nothing listens at its address. A process that has left the job in order
// (Depart) counts as dead, too: it has stopped to answer before it reported that. Other processes
// that do not answer may live in another part of a network that is cut.
//
// Two sets that can decide have a member in common, or the members of one of them are dead. The
// second case needs two rules. A proposer accepts its own value before it asks others to, so a live
// process that may decide has accepted. And a process that has promised a higher ballot ignores a
// decision that a dead process may have sent.
//
// The dead members may also have admitted a new process, which still lives. So package comm claims
// the number of each membership in the directory of the job. A process fails with ErrExcluded if
// another membership has claimed the number. Without a common directory nothing can be claimed.
// Then Config.Apart is set, and no end of a process is certain. A process that has left in order
// still counts as dead. It does not report that it has left if it has a later membership than the
// others, so the process that let others in does not count as dead.
//
// # Witness
//
// A membership may have a witness: a process that accepts values as a member does, and keeps
// nothing else. Then a set of members can decide if it has more than half of them, or half of them
// and the vote of the witness, or if all others are certainly dead. Half of them and the first
// member are not enough, with or without the witness. So either half can continue, and not both:
// two sets that need the vote of the witness have the witness in common. The proposer asks the
// witness last, and only if its vote is needed.
//
// The promises of a witness are in memory only. A witness that is started again has another ID. The
// membership has the ID of its witness, and only the witness with this ID votes in the decision on
// the next one: it has lived since before the membership was proposed, so it has all promises about
// that decision. The proposer of a membership asks the witness for its ID, and the value that is
// decided has this ID, or the last one if the witness does not answer. So a witness that was
// started again votes when the members have agreed once without it.
//
// A witness records no memberships. It has one acceptor for each membership whose members have
// asked it, by a hash of number and members, and serves any number of jobs with one secret. If one
// half has died, certainly, after the witness has accepted its value, the other half decides
// without the witness, and does not ask it. No live process has the first value then, except for
// one that the dead half has let in, and the claim of the number excludes that process or the
// others.
//
// # Crashes
//
//   - A proposer dies before a set has accepted its value: the next one proposes, with a higher
//     ballot. It takes over a value that a process has accepted.
//   - A proposer dies after that: the next one finds the value, as it asks a set with a common
//     member, and decides it.
//   - A member dies after it was found waiting: membership k has a dead member, and its group
//     cannot form. The members of k notice this by guard, each at the next one and all at the first
//     one, and agree on k+1.
//   - A process dies while it waits to join: the same, if a membership has it. If not, nothing.
//   - A process is stopped, or cut off, and returns: it asks, or is asked, and learns the latest
//     membership. If this does not have the process, Next fails with ErrExcluded.
//
// State is in memory only: a member that has died never returns, and a process started in its
// place is another one.
package quorum
