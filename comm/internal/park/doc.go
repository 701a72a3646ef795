// Package park is where goroutines wait for each other: for a turn (Baton), for a change of guarded
// state (Parking), and for a failure (Alarm). None of them allocates in steady state.
package park
